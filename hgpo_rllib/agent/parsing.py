"""Completion to action, by the rules of the released agents."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

FALLBACK_CHARACTERS = 30  # of a completion without tags, sent to the environment as the action
ANY_SEARCH = "search[<your query>]"  # how WebShop offers all searches at once
_SEARCH = re.compile(r"search\[.+\]")
_CHINESE = re.compile("[\u4e00-\u9fff]")


@dataclass(frozen=True)
class ParsedAction:
    """An action and whether the completion was well formed."""

    action: str
    is_valid: bool


def parse_completion(completion: str) -> ParsedAction:
    """Take the lower-cased text between the first ``<action>`` and the first ``</action>``.

    Without both tags the action is the completion's last 30 characters, and invalid. A completion
    without ``<think>`` or ``</think>`` (case-sensitive) or with Chinese characters is invalid, but
    its action still goes to the environment.
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

    In linear time: a regular expression would look for the end again from every unclosed tag.
    """
    _, _, rest = completion.partition("<think>")
    thought, closing_tag, _ = rest.partition("</think>")
    return thought if closing_tag else None


def is_offered(action: str, admissible_actions: Sequence[str]) -> bool:
    """Whether an action is one of those that the prompt offers."""
    if action in admissible_actions:
        return True
    return ANY_SEARCH in admissible_actions and bool(_SEARCH.fullmatch(action))
