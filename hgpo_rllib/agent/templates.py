"""Prompt templates, and how all jinja files are read: undefined variables are errors."""

import functools
import re
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta

from hgpo_rllib.agent.parsing import find_thought

PROMPTS = Path(__file__).parent / "prompts"
SIDE_ACTIONS = ("examine", "look", "inventory")
SEPARATOR = " [SEP] "  # between the parts of a WebShop page
_SIDE_PART = re.compile(
    r"(Back to Search|Page \d+ \(.*\)|< Prev|Next >|(Price: )?\$.*|Rating: .*"
    r"|Description|Features|Reviews)$"
)


def template_environment(folder: Path, **options: Any) -> jinja2.Environment:
    """Return the environment of a folder of templates; tags on lines of their own leave no line."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )


def load_template(name: str) -> jinja2.Template:
    """Load the template of that name from ``prompts/``, or the file at that path.

    Raises:
        FileNotFoundError: no such template; the message lists the available ones.
    """
    path = PROMPTS / f"{name}.jinja"
    if not path.is_file():
        path = Path(name)
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in PROMPTS.glob("*.jinja")))
        raise FileNotFoundError(f"no prompt template {name!r}: give a path or one of {known}")
    return _prompt_environment(path.parent).get_template(path.name)


@functools.cache  # a template is compiled once, and again if its file has changed
def _prompt_environment(folder: Path) -> jinja2.Environment:
    environment = template_environment(folder)
    filters = (brief, main_actions, page, page_parts, main_parts, thought)
    environment.filters |= {function.__name__: function for function in filters}
    return environment


def unknown_variables(template: jinja2.Template, known: Set[str]) -> list[str]:
    """Return the variables that are not in `known`, of all branches of a template."""
    environment = template.environment
    syntax_tree = environment.parse(Path(template.filename or "").read_text())
    used = jinja2.meta.find_undeclared_variables(syntax_tree)
    return sorted(used - known - environment.globals.keys())


def brief(observation: str) -> str:
    """Remove what the list of actions repeats: the room's contents and the arrival sentence."""
    if observation.startswith("You are in the middle of a room"):
        return "You look around."
    return re.sub(r"^You arrive at [^.]*\. ", "", observation)


def main_actions(actions: Sequence[str]) -> list[str]:
    """Return the actions other than examine, look and inventory."""
    return [action for action in actions if action.split()[0] not in SIDE_ACTIONS]


def thought(completion: str) -> str:
    """Return the text in the first pair of thinking tags, on one line; empty without them."""
    return " ".join((find_thought(completion) or "").split())


def page_parts(observation: str) -> list[str]:
    """Return the parts of a WebShop page after the instruction; the prompt shows it as the goal."""
    parts = observation.split(SEPARATOR)
    marks = [i for i, part in enumerate(parts[:2]) if part == "Instruction:"]
    return parts[marks[0] + 2 :] if marks else parts


def main_parts(parts: Sequence[str]) -> list[str]:
    """Return the parts without prices, ratings and navigation, which are on every such page."""
    return [part for part in parts if not _SIDE_PART.match(part)]


def page(observation: str) -> str:
    """Return the `page_parts` in quotes, as the released agents show a page."""
    return SEPARATOR.join(f"'{part}'" for part in page_parts(observation))
