"""Generates docs/configuration.md from the docstrings of the settings.

Run ``python docs/config_reference.py`` after a change of the settings. A test fails if the
page is out of date.
"""

import json
import types
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from hgpo_rllib.config import RunConfig
from hgpo_rllib.reporting.markdown import table
from hgpo_rllib.section import Section

PAGE = Path(__file__).with_name("configuration.md")
INTRODUCTION = """# Configuration

All settings of a run, with defaults and meaning. This page is generated from
`hgpo_rllib/settings/` and `hgpo_rllib/config.py` by `python docs/config_reference.py`. Edit the
docstrings there.

A run file is a YAML file with the sections below. It needs only the settings that differ from the
defaults:

```yaml
name: mine
env:
  max_steps: 30
algorithm:
  context_length: 4
```

- **On the command line**, override a setting with `section.key=value`. The value is YAML, and the
  last override wins:
  `hgpo train mine.yaml algorithm.context_length=2 evaluation.splits=[valid_seen]`.
- **By name**: `hgpo train alfworld_pocket` uses the run file of that name in `tuned_examples/`,
  from any working directory. An existing path takes precedence.
- *Released* values and *the released code* are those of the paper's authors
  ([algorithm](algorithm.md)).
- **`extends: other.yaml`** at the top of a run file inherits the settings of another run file, with
  a path relative to the file's folder. Sections are merged key by key; lists and other values are
  replaced.
- **`hgpo train FILE --dry-run`** prints the resulting settings as YAML on standard output, and the
  resource requests and a memory estimate on standard error. It first checks the data,
  `env.options`, the prompt template and a local model. If one is invalid, it exits with code 2 and
  a one-line message.
- **`HGPOConfig().training(key=value)`** takes the settings of the sections `model`, `agent`,
  `rollout`, `policy_server`, `algorithm` and `learner`, without the name of the section. The other
  settings are those of RLlib, such as `.environment(env_id, env_config={"data": …})` and
  `.evaluation(evaluation_interval=…)`, and the attributes `train_split`, `eval_splits`,
  `eval_episodes` and `eval_temperature`. `HGPOConfig.from_run_config` converts a run file whose
  `env.data` and `model.model_path` are set.
- An unknown key or a value out of range ends the command with exit code 2 and a one-line message
  that names it.
"""
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
PLAIN_TYPES = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def render() -> str:
    """The page: a table for the settings at the top of a file, and one for each section."""
    top: dict[str, FieldInfo] = {}
    sections: dict[str, FieldInfo] = {}
    for name, field in RunConfig.model_fields.items():
        (sections if _is_section(field.annotation) else top)[name] = field
    parts = [INTRODUCTION, "## At the top of the file\n\n" + _table(top)]
    for name, field in sections.items():
        section = field.annotation
        assert section is not None, "every field is annotated"
        parts.append(f"## `{name}`\n\n{_text(section.__doc__)}\n\n{_table(section.model_fields)}")
    return "\n".join(parts)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _table(fields: dict[str, FieldInfo]) -> str:
    rows = [
        (f"`{name}`", _values(field), _default(field.default), _text(field.description))
        for name, field in fields.items()
    ]
    return table(("setting", "values", "default", "meaning"), rows) + "\n"


def _values(field: FieldInfo) -> str:
    """Type and bounds in words: ``whole number ≥ 1``."""
    kind, null, _ = _type(field.annotation).partition(" or null")
    return f"{kind} {_bounds(field)}".strip() + null


def _bounds(field: Any) -> str:
    return ", ".join(
        f"{sign} {getattr(bound, name):.12g}"
        for name, sign in BOUNDS.items()
        for bound in getattr(field, "metadata", ())  # a validator has none
        if hasattr(bound, name)
    )


def _type(annotation: Any) -> str:
    arguments = get_args(annotation)
    origin = get_origin(annotation)
    if origin is Annotated:
        return f"{_type(arguments[0])} {_bounds(arguments[1])}".strip()
    if origin is types.UnionType:
        return " or ".join("null" if a is type(None) else _type(a) for a in arguments)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is tuple:
        return f"list of {len(arguments)} × {_type(arguments[0])}"
    return "mapping" if origin is dict else PLAIN_TYPES[annotation]


def _default(value: Any) -> str:
    """As in a run file."""
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`"


def _text(docstring: str | None) -> str:
    """Paragraphs as lines without breaks."""
    paragraphs = (docstring or "").strip().split("\n\n")
    return " ".join(" ".join(paragraph.split()) for paragraph in paragraphs)


if __name__ == "__main__":
    PAGE.write_text(render())
