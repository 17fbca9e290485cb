"""Rules for parsing thoughts and actions, for validity, and for offered actions."""

import pytest

from env_wrappers.spaces import ANY_ACTION, ANY_SEARCH
from hgpo_rllib.agent.parsing import ParsedAction, find_thought, is_admissible, parse_completion
from hgpo_rllib.agent.templates import thought


@pytest.mark.parametrize(
    ("completion", "found"),
    [
        ("<think>a</think>b</think>", "a"),
        ("x<think><think> a\n</think><think>b</think>", "<think> a\n"),
        ("</think><think>a</think>", "a"),
        ("<think></think>", ""),
        ("<think>a", None),
        ("</think>a<think>", None),
        ("", None),
    ],
)
def test_thoughts(completion: str, found: str | None) -> None:
    assert find_thought(completion) == found
    assert thought(completion) == " ".join((found or "").split())


def test_unclosed_tags_are_read_in_linear_time() -> None:
    """Many unclosed tags parse fast, unlike with a regular expression, which took hours."""
    completion = "<think>" * 700_000
    assert find_thought(completion) is None
    assert thought(completion) == ""
    assert not parse_completion(completion).is_valid


class TestParsing:
    @pytest.mark.parametrize(
        ("completion", "action", "is_valid"),
        [
            ("<think>why</think><action>go to desk 1</action>", "go to desk 1", True),
            # The action is trimmed and lower-cased.
            ("<think>a</think><ACTION>\n Go To Desk 1 </Action>", "go to desk 1", True),
            # The order of the parts does not matter, and text around them is ignored.
            ("so <action>look</action> <think>late</think> !", "look", True),
            ("</think><think><action>look</action>", "look", True),
            # The first opening and the first closing tag count.
            ("<think></think><action>a</action><action>b</action>", "a", True),
            ("<think></think><action>a<action>b</action>", "a<action>b", True),
            ("<think></think></action><action>look</action>", "", True),
            ("<think></think><action></action>", "", True),
            # Thinking tags are required, in lower case, but the action is still sent.
            ("<action>look</action>", "look", False),
            ("<think>a<action>look</action>", "look", False),
            ("a</think><action>look</action>", "look", False),
            ("<Think>a</think><action>look</action>", "look", False),
            ("<think>a</THINK><action>look</action>", "look", False),
            # Chinese characters make a response invalid; other scripts do not.
            ("<think>我</think><action>look</action>", "look", False),
            ("<think></think><action>look 看</action>", "look 看", False),
            ("<think>é ñ あ</think><action>look</action>", "look", True),
        ],
    )
    def test_tags(self, completion: str, action: str, is_valid: bool) -> None:
        """Parsing follows each rule of the released agents."""
        assert parse_completion(completion) == ParsedAction(action, is_valid)

    @pytest.mark.parametrize("tags", ["{}", "<think>a</think><action>{}", "{}</action>"])
    def test_without_both_action_tags(self, tags: str) -> None:
        """The last 30 characters, lower-cased and not trimmed, are sent and count as invalid."""
        completion = tags.format(" I Would Like To Go To The Desk Number ONE ")
        expected = completion.lower()[-30:]
        assert parse_completion(completion) == ParsedAction(expected, False)

    @pytest.mark.parametrize("completion", ["", "Look", " x "])
    def test_a_short_text_is_sent_whole(self, completion: str) -> None:
        """A text of fewer than 30 characters is sent whole."""
        assert parse_completion(completion) == ParsedAction(completion.lower(), False)

    @pytest.mark.parametrize(
        ("action", "offered"),
        [
            ("look", True),
            ("search[red mug]", True),
            (ANY_SEARCH, True),
            ("search[]", False),
            ("search[a] b", False),
            ("lookup", False),
        ],
    )
    def test_an_offered_search_is_any_search(self, action: str, offered: bool) -> None:
        """If searches are offered, any non-empty search counts as offered."""
        assert is_admissible(action, ["look", ANY_SEARCH]) is offered
        assert is_admissible(action, ["look"]) is (action == "look")
        assert is_admissible(action, [ANY_ACTION])

    def test_validity_is_a_bool(self) -> None:
        """`is_valid` is a bool, never a match object, as it becomes an array of bools later."""
        for completion in (
            "<think></think><action>a</action>",
            "<think>我</think><action></action>",
        ):
            assert type(parse_completion(completion).is_valid) is bool
