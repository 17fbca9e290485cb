"""The tokens that an action grammar permits, compared with a test of every token."""

import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from env_wrappers.spaces import ANY_ACTION, ANY_SEARCH
from hgpo_rllib.agent import action_grammar
from hgpo_rllib.rollout.restrictions import GrammarReader
from hgpo_rllib.warmstart.tokenizer import train_tokenizer

ACTIONS = ["go to desk 1", "go to desk 12", "take mug 1 from desk 1", "look", "click[it's <b>]"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with merges, so that an action has several tokenisations."""
    texts = [f"<think>mug: find it</think><action>{action}</action>" for action in ACTIONS]
    return train_tokenizer(texts, ["go", "to"], 330)


@pytest.fixture(scope="module")
def reader(tokenizer: PreTrainedTokenizerFast) -> GrammarReader:
    return GrammarReader(tokenizer, [tokenizer.eos_token_id])


def permitted(restrictions: np.ndarray, index: int, vocabulary: int) -> set[int]:
    """Return the tokens that restrictions permit at one place."""
    codes = restrictions[restrictions[:, 0] == index, 1]
    listed, excluded = set(codes[codes >= 0].tolist()), set((~codes[codes < 0]).tolist())
    assert not (listed and excluded)
    return listed or set(range(vocabulary)) - excluded


@given(
    actions=st.lists(st.sampled_from(ACTIONS), min_size=1, unique=True),
    thought=st.text(string.ascii_letters + " .:'", max_size=8),
    data=st.data(),
)
def test_every_token_of_the_vocabulary(
    tokenizer: PreTrainedTokenizerFast,
    reader: GrammarReader,
    actions: list[str],
    thought: str,
    data: st.DataObject,
) -> None:
    """A token is permitted if it continues an admissible action, in any tokenization.

    Nothing is restricted before the tag, and only the end token is permitted after it.
    """
    texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    ends = [f"{action}</action>" for action in actions]
    ids = tokenizer.encode(f"<think>{thought}</think><action>")
    begin, done, wanted = len(ids), "", []
    while done not in ends:
        possible = {
            token
            for token, text in enumerate(texts)
            if text.isascii() and any(end.startswith(done + text) for end in ends)
        }
        wanted.append(possible)
        ids.append(data.draw(st.sampled_from(sorted(possible))))
        done += texts[ids[-1]]
    wanted.append({tokenizer.eos_token_id})
    ids.append(tokenizer.eos_token_id)
    grammar = action_grammar(actions)
    assert grammar is not None
    restrictions = reader.restrictions(grammar, ids)
    assert restrictions[:, 0].min() == begin
    found = [permitted(restrictions, i, len(texts)) for i in range(begin, len(ids))]
    assert found == wanted


def test_a_response_without_an_action(
    tokenizer: PreTrainedTokenizerFast, reader: GrammarReader
) -> None:
    """A response without an action has no restrictions."""
    grammar = action_grammar(ACTIONS)
    assert grammar is not None
    ids = [*tokenizer.encode("<think>go to desk 1</think>"), tokenizer.eos_token_id]
    assert reader.restrictions(grammar, ids).shape == (0, 2)


def test_an_action_that_is_not_admissible(
    tokenizer: PreTrainedTokenizerFast, reader: GrammarReader
) -> None:
    """An inadmissible action, which a constrained engine cannot sample, raises an error."""
    grammar = action_grammar(["look"])
    assert grammar is not None
    ids = tokenizer.encode("<action>go to desk 1</action>")
    with pytest.raises(ValueError, match="token 1 of the response is not permitted"):
        reader.restrictions(grammar, ids)


@pytest.mark.parametrize(
    "admissible", [[], [ANY_SEARCH], ["click[back to search]", ANY_SEARCH], [ANY_ACTION]]
)
def test_pages_without_a_grammar(admissible: list[str]) -> None:
    """Pages with a search or with free text have no grammar."""
    assert action_grammar(admissible) is None
