"""Parse completions to actions, by the rules of the released agents."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

FALLBACK_CHARACTERS = 30  # end of a completion without tags, used as the action
ANY_SEARCH = "search[<your query>]"  # how WebShop offers all searches at once
_SEARCH = re.compile(r"search\[.+\]")
_CHINESE = re.compile("[\u4e00-\u9fff]")


@dataclass(frozen=True)
class ParsedAction:
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


def find_thought(completion: str) -> str | None:
    """Return the text between the first ``<think>`` and the next ``</think>``; None without both.

    Takes linear time; a regular expression would search for the end from every unclosed tag.
    """
    _, _, rest = completion.partition("<think>")
    thought, closing_tag, _ = rest.partition("</think>")
    return thought if closing_tag else None


def is_offered(action: str, admissible_actions: Sequence[str]) -> bool:
    """Return whether the prompt offers the action."""
    if action in admissible_actions:
        return True
    return ANY_SEARCH in admissible_actions and bool(_SEARCH.fullmatch(action))
