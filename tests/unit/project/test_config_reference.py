"""docs/configuration.md documents the settings."""

from typing import Literal

import pytest
from pydantic import Field

from docs import config_reference, metrics_reference
from hgpo_rllib.config import RunConfig
from hgpo_rllib.section import Section


class Sample(Section):
    """One field of every kind."""

    whole: int = Field(3, ge=1, le=9)
    """A | B."""
    share: float = Field(1e-6, gt=0, lt=1)
    """In two
    lines."""
    maybe: list[str] | None = None
    """A list."""
    rate: float | None = Field(None, gt=0)
    """A rate."""
    choice: Literal["a", "b"] = "b"
    """One of two."""
    pair: tuple[float, float] = (0.5, 1.0)
    """Two."""
    on: bool = True
    """A switch."""


def test_the_page_is_up_to_date() -> None:
    """The page equals its generated version (regenerate it after changing settings)."""
    written = config_reference.PAGE.read_text()
    assert written == config_reference.render(), "run: python docs/config_reference.py"


def test_the_page_and_the_dashboard_of_the_metrics_are_up_to_date() -> None:
    remedy = "run: python docs/metrics_reference.py"
    assert metrics_reference.PAGE.read_text() == metrics_reference.render_page(), remedy
    assert metrics_reference.DASHBOARD.read_text() == metrics_reference.render_dashboard(), remedy


def test_every_setting_is_there() -> None:
    """Every setting is listed under the heading of its section."""
    page = config_reference.render()
    for name, value in RunConfig():
        if not isinstance(value, Section):
            assert f"\n| `{name}` |" in page.partition("\n## `")[0]
            continue
        table = page.partition(f"\n## `{name}`\n")[2].partition("\n## ")[0]
        rows = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
        assert rows == list(type(value).model_fields)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("whole", r"| `whole` | whole number ≥ 1, ≤ 9 | `3` | A \| B. |"),
        ("share", "| `share` | number > 0, < 1 | `1e-06` | In two lines. |"),
        ("maybe", "| `maybe` | list of text or null | `null` | A list. |"),
        ("rate", "| `rate` | number > 0 or null | `null` | A rate. |"),
        ("choice", "| `choice` | `a`, `b` | `b` | One of two. |"),
        ("pair", "| `pair` | list of 2 × number | `[0.5, 1.0]` | Two. |"),
        ("on", "| `on` | true or false | `true` | A switch. |"),
    ],
)
def test_a_row(name: str, row: str) -> None:
    """A row has the type with its bounds, the default in YAML and the docstring on one line."""
    assert row in config_reference._table({name: Sample.model_fields[name]}).splitlines()
