"""`hgpo bench webshop --recordings`."""

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from env_wrappers.errors import DataError
from env_wrappers.webshop.session import Session
from env_wrappers.webshop.shop import open_shop
from env_wrappers.webshop.tokens import analyze
from hgpo_rllib.bench import webshop, webshop_recordings
from hgpo_rllib.bench.webshop_recordings import compare_recordings
from hgpo_rllib.cli.main import app
from tests.unit.env_wrappers.webshop.webshop_store import SHIRT, write_store

TOKENS, HITS, TRACES, REWARDS, NOUNS = (
    f"webshop_{name}.json.xz"
    for name in ("search_tokens", "search_hits", "traces", "rewards", "title_nouns")
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("store") / "data")


def _write(folder: Path, recordings: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in recordings.items():
        (folder / name).write_bytes(lzma.compress(json.dumps(content).encode()))
    return folder


def _record(data: Path) -> dict[str, Any]:
    """Record the store itself, as the original was recorded."""
    shop = open_shop(data, price_seed=webshop_recordings.PRICE_SEED, nouns="words")
    catalogue = shop.catalogue
    session = Session(shop)
    session.start(0)

    def seen(action: str, result: tuple[float, bool] | None) -> dict[str, Any]:
        names = {"text": "obs", "text_rich": "rich", "url": "url"}
        texts = {key: session.observation(mode) for mode, key in names.items()}
        step = texts | {"a": action, "av": session.available_actions()}
        return step if result is None else step | {"r": result[0], "done": result[1]}

    steps = [seen("reset", None)]
    for action in ("search[shirt]", f"click[{SHIRT.lower()}]", "click[nothing]", "click[buy now]"):
        steps.append(seen(action, session.step(action)))
    score = session.score
    assert score is not None
    episode = {"idx": 0, "goal": {"instruction_text": session.goal.instruction}, "steps": steps}
    hits = [catalogue[index].asin for index in catalogue.search("towel")]
    return {
        TOKENS: [["A", "Red shoes", analyze("Red shoes")], ["B", "", []]],
        HITS: [["towel", hits], ["unknown", []]],
        TRACES: {"about": "", "synth": [episode], "human": []},
        REWARDS: [[0, SHIRT, {}, score.reward, {}]],
        NOUNS: {
            "nouns": {product.title: list(shop.nouns.find(product.title)) for product in catalogue}
        },
    }


def test_what_is_the_same_agrees(data: Path, tmp_path: Path) -> None:
    recordings = _write(tmp_path, _record(data))
    assert compare_recordings(data, recordings) == [
        {"kind": "terms of documents", "recorded": 2, "same": 2},
        {"kind": "hits of queries", "recorded": 2, "same": 2},
        {"kind": "episodes", "recorded": 1, "same": 1},
        {"kind": "rewards", "recorded": 1, "same": 1},
    ]


def _other(container: Any, *path: Any) -> None:
    """Exchange what is at a path for something else."""
    *way, last = path
    for key in way:
        container = container[key]
    value = container[last]
    container[last] = [*value, "more"] if isinstance(value, list) else f"{value}!"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (TOKENS, lambda r: _other(r, 1, 2)),
        (HITS, lambda r: _other(r, 0, 1)),
        (TRACES, lambda r: _other(r, "synth", 0, "goal", "instruction_text")),
        (TRACES, lambda r: _other(r, "synth", 0, "steps", 0, "obs")),
        (TRACES, lambda r: _other(r, "synth", 0, "steps", 2, "rich")),
        (TRACES, lambda r: _other(r, "synth", 0, "steps", 4, "url")),
        (TRACES, lambda r: _other(r, "synth", 0, "steps", 3, "av", "clickables")),
        (TRACES, lambda r: r["synth"][0]["steps"][4].update(r=0.123)),
        (TRACES, lambda r: r["synth"][0]["steps"][1].update(done=True)),
        (REWARDS, lambda r: r[0].__setitem__(3, r[0][3] + 1e-8)),
    ],
)
def test_a_difference_anywhere_counts(
    data: Path, tmp_path: Path, name: str, change: Callable[[Any], None]
) -> None:
    recorded = _record(data)
    change(recorded[name])
    recordings = _write(tmp_path, {key: recorded[key] for key in (name, NOUNS)})
    (agreement,) = compare_recordings(data, recordings)
    assert agreement["same"] == agreement["recorded"] - 1


def test_recordings_that_cannot_be_used_are_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no recordings here; there should be webshop_search_tok"):
        compare_recordings(data, tmp_path)
    (tmp_path / HITS).write_bytes(b"[1, 2")
    with pytest.raises(DataError, match=f"{HITS} cannot be read .*: fetch it again"):
        compare_recordings(data, tmp_path)
    _write(tmp_path, {HITS: [["shirt"]]})
    with pytest.raises(DataError, match=f"{HITS} does not fit the products: "):
        compare_recordings(data, tmp_path)
    (tmp_path / HITS).unlink()
    _write(tmp_path, {REWARDS: []})
    with pytest.raises(DataError, match=f"^{tmp_path / NOUNS} cannot be read"):
        compare_recordings(data, tmp_path)
    _write(tmp_path, {REWARDS: [[0, "B0UNKNOWN", {}, 1.0, {}]], NOUNS: {"nouns": {}}})
    with pytest.raises(DataError, match=r"does not fit the products: KeyError\('B0UNK"):
        compare_recordings(data, tmp_path)


@pytest.mark.parametrize("reward", [0.0, 1e-8])
def test_a_difference_is_exit_code_1(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reward: float
) -> None:
    """With the same output."""
    monkeypatch.setattr(webshop, "bench_webshop", lambda *arguments, **options: {})
    recorded = _record(data)
    recorded[REWARDS][0][3] += reward
    recordings = _write(tmp_path, recorded)
    options = ["--data", str(data), "--recordings", str(recordings)]
    done = CliRunner().invoke(app, ["bench", "webshop", *options, "--json"])
    assert done.exit_code == int(reward > 0), done.output
    *_, last = json.loads(done.stdout)["recordings"]
    assert last == {"kind": "rewards", "recorded": 1, "same": int(reward == 0)}
