"""Responses with sub-goals: their blocks, the current sub-goal, and spans of tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from hgpo_rllib.agent import Memory, TextRenderer, TokenRenderer
from hgpo_rllib.agent.parsing import find_blocks, parse_completion
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.warmstart.demonstrations import subgoal_text
from hgpo_rllib.warmstart.tokenizer import train_tokenizer

SWITCH = "<switch>SWITCH</switch><subgoal>find mug</subgoal><action>go to desk 1</action>"
KEEP = "<switch>keep</switch><subgoal>other</subgoal><action>look</action>"


@pytest.mark.parametrize(
    ("completion", "valid", "switches", "subgoal"),
    [
        (SWITCH, True, True, "find mug"),
        (KEEP, True, False, "other"),
        (SWITCH.replace(">SWITCH<", "> switch\n<"), True, True, "find mug"),
        (SWITCH.replace("find mug", " find\n mug "), True, True, "find mug"),
        (SWITCH.replace("SWITCH", "MAYBE"), False, False, "find mug"),
        (SWITCH.replace("</switch>", ""), False, False, "find mug"),
        (SWITCH.replace("<subgoal>", ""), False, True, ""),
        (SWITCH.replace("</action>", ""), False, True, "find mug"),
        (SWITCH + "看", False, True, "find mug"),
        ("<think>a</think>" + SWITCH, True, True, "find mug"),
        ("</switch></subgoal>" + SWITCH, True, True, "find mug"),
        ("", False, False, ""),
    ],
)
def test_blocks(completion: str, valid: bool, switches: bool, subgoal: str) -> None:
    """A missing or unknown switch word means keep; the action is parsed as for other agents."""
    blocks = find_blocks(completion)
    assert (blocks.parsed.is_valid, blocks.switches, blocks.subgoal) == (valid, switches, subgoal)
    assert blocks.parsed.action == parse_completion(completion).action
    for name, (start, end) in blocks.places.items():
        assert completion[start:end].startswith(f"<{name}>")
        assert completion[start:end].endswith(f"</{name}>")


def test_the_current_subgoal() -> None:
    """The current sub-goal is that of the last switch, or else of the first response."""
    memory = Memory()
    assert memory.subgoal == "None"
    for completion, current in (
        (KEEP, "other"),
        (KEEP.replace("other", "new"), "other"),
        ("nonsense", "other"),
        (SWITCH, "find mug"),
        (KEEP, "find mug"),
        ("<switch>SWITCH</switch>", "None"),
    ):
        memory.add("a room", "look", completion)
        assert memory.subgoal == current


def test_prompts_show_the_current_subgoal() -> None:
    """Prompts begin with the current sub-goal; the full template asks for the three blocks."""
    for prompt in ("alfworld_compact", "webshop_compact", "subgoals_full"):
        renderer = TextRenderer(AgentSettings(prompt=prompt, subgoals=True, memory_length=2))
        memory = Memory()
        memory.add("a room", "go to desk 1", SWITCH)
        text = renderer.message("a goal", "a desk", ["look"], 1, memory.turns, memory)
        assert text.startswith("Subgoal: find mug\n")
        assert all(part in text for part in ("a goal", "a desk", "go to desk 1"))
    assert "<switch>SWITCH</switch>" in text


def test_other_agents_have_none() -> None:
    renderer = TextRenderer(AgentSettings(prompt="alfworld_compact"))
    memory = Memory()
    memory.add("a room", "go to desk 1", SWITCH)
    assert "Subgoal" not in renderer.message("a goal", "a desk", ["look"], 1, [], memory)
    assert not renderer.parse(SWITCH, []).is_valid


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer that merges characters across the ends of blocks."""
    return train_tokenizer([SWITCH, KEEP, "a pen: take it é"] * 20, [], 380)


@given(
    st.sampled_from(["KEEP", "SWITCH"]),
    st.text(st.characters(codec="utf-8", exclude_characters="<>"), max_size=8),
    st.sampled_from(["", "so ", "\n"]),
    st.booleans(),
)
def test_spans(
    tokenizer: PreTrainedTokenizerFast, word: str, subgoal: str, before: str, is_first: bool
) -> None:
    """A span is the shortest run of tokens that contains its block."""
    renderer = TokenRenderer(tokenizer, AgentSettings(subgoals=True))
    text = f"{before}<switch>{word}</switch><subgoal>{subgoal}</subgoal><action>look</action>"
    ids = renderer.encode_response(text)
    completion = renderer.decode(ids)
    spans = {span.role: span for span in renderer.spans(completion, ids, is_first)}
    begins = word == "SWITCH" or is_first
    assert spans.keys() == {"switch", "action"} | ({"subgoal"} if begins else set())
    blocks = find_blocks(completion)
    for role, span in spans.items():
        start, end = blocks.places[role]
        inside = renderer.decode(ids[span.start : span.end])
        assert completion[start:end] in inside
        for fewer in (ids[span.start + 1 : span.end], ids[span.start : span.end - 1]):
            assert completion[start:end] not in renderer.decode(fewer)


def test_without_an_action_the_whole_response_is_its_span(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    renderer = TokenRenderer(tokenizer, AgentSettings(subgoals=True))
    ids = renderer.encode_response("<switch>KEEP</switch> look")
    spans = renderer.spans(renderer.decode(ids), ids, False)
    assert [(span.role, span.end) for span in spans[1:]] == [("action", len(ids))]
    assert spans[1].start == 0
    assert renderer.spans("", [], False) == []


def test_demonstrated_responses() -> None:
    """Demonstrated responses switch where the expert's thought changes."""
    first = subgoal_text("None", "mug: find it", "look")
    assert find_blocks(first)[:3] == (("look", True), True, "mug: find it")
    assert not find_blocks(subgoal_text("mug: find it", "mug: find it", "look")).switches
