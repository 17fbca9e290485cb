"""Parse completions to actions, by the rules of the released agents; grammars of completions."""

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from env_wrappers.spaces import ANY_ACTION, ANY_SEARCH

FALLBACK_CHARACTERS = 30  # end of a completion without tags, used as the action
BLOCKS = ("switch", "subgoal", "action")
_SEARCH = re.compile(r"search\[.+\]")
_CHINESE = re.compile("[\u4e00-\u9fff]")


class ParsedAction(NamedTuple):
    """An action and whether the completion was well formed."""

    action: str
    is_valid: bool


def parse_completion(completion: str) -> ParsedAction:
    """Return the lower-cased text between the first ``<action>`` and the first ``</action>``.

    If a tag is missing, the action is the last 30 characters and invalid. A completion without
    ``<think>`` or ``</think>`` (case-sensitive) or with Chinese characters is invalid, but its
    action is still sent to the environment.
    """
    lower = completion.lower()
    start, end = lower.find("<action>"), lower.find("</action>")
    if start < 0 or end < 0:
        return ParsedAction(lower[-FALLBACK_CHARACTERS:], False)
    action = lower[start + len("<action>") : end].strip()
    thinks = "<think>" in completion and "</think>" in completion
    return ParsedAction(action, thinks and not _CHINESE.search(completion))


class Blocks(NamedTuple):
    """The blocks of a response with a sub-goal."""

    parsed: ParsedAction
    switches: bool
    """Whether the response begins a new sub-goal."""
    subgoal: str
    places: dict[str, tuple[int, int]]
    """Characters of the blocks `switch`, `subgoal` and `action` with their tags, start and end."""


def find_blocks(completion: str) -> Blocks:
    """Return the blocks of a response: ``<switch>``, ``<subgoal>`` and ``<action>``.

    Only the word SWITCH in the first block switches, in any case; a missing block keeps. The action
    is that of `parse_completion`. It is valid if all blocks are there, the first is SWITCH or KEEP,
    and there are no Chinese characters.
    """
    places, texts = {}, dict.fromkeys(BLOCKS, "")
    for name in BLOCKS:
        start = completion.find(f"<{name}>")
        end = completion.find(f"</{name}>", start)
        if start >= 0 and end >= 0:
            texts[name] = completion[start + len(name) + 2 : end].strip()
            places[name] = start, end + len(name) + 3
    word = texts["switch"].upper()
    valid = len(places) == len(BLOCKS) and word in ("SWITCH", "KEEP")
    parsed = ParsedAction(
        parse_completion(completion).action, valid and not _CHINESE.search(completion)
    )
    return Blocks(parsed, word == "SWITCH", " ".join(texts["subgoal"].split()), places)


def find_thought(completion: str) -> str | None:
    """Return the text between the first ``<think>`` and the next ``</think>``; None without both.

    Takes linear time; a regular expression would search for the end from every unclosed tag.
    """
    _, _, rest = completion.partition("<think>")
    thought, closing_tag, _ = rest.partition("</think>")
    return thought if closing_tag else None


def is_admissible(action: str, admissible_actions: Sequence[str]) -> bool:
    """Return whether the prompt offers the action."""
    if action in admissible_actions or ANY_ACTION in admissible_actions:
        return True
    return ANY_SEARCH in admissible_actions and bool(_SEARCH.fullmatch(action))


def action_grammar(admissible_actions: Sequence[str]) -> str | None:
    """Return a structural tag, in the JSON form of xgrammar and vLLM; None if there is no limit.

    It permits any text, and after ``<action>`` only an admissible action, ``</action>`` and the end
    of the response. A response without ``<action>`` is permitted too. Pages with a search bar have
    no grammar, because the words of a search are free, and neither have games that accept any text.
    """
    if not admissible_actions or {ANY_ACTION, ANY_SEARCH} & {*admissible_actions}:
        return None
    actions = [{"type": "const_string", "value": action} for action in admissible_actions]
    tag = {
        "type": "tag",
        "begin": "<action>",
        "content": {"type": "or", "elements": actions},
        "end": "</action>",
    }
    tags = {
        "type": "triggered_tags",
        "triggers": ["<action>"],
        "tags": [tag],
        "stop_after_first": True,
    }
    return json.dumps({"type": "structural_tag", "format": tags})
