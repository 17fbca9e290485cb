"""The space of text: correct in Gymnasium's functions, or refused by them."""

import pickle
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Dict, Discrete, Text, flatdim, flatten, flatten_space, unflatten
from gymnasium.vector.utils import (
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    iterate,
)

from env_wrappers.spaces import AnyText

TEXTS = ("", "line\none", "ümlaut ☕ 毛巾", "\x00\u202e", "\ud800")


def test_it_contains_any_script_up_to_its_length() -> None:
    space = AnyText(4)
    assert "" in space
    assert "☕\n ü" in space
    assert "12345" not in space
    assert 3 not in space
    assert "☕" * 10**7 in AnyText()
    assert 3 not in AnyText()
    assert AnyText().sample() in AnyText()
    with pytest.raises(ValueError, match="max_length must be at least 0, not -1"):
        AnyText(-1)


def test_samples_depend_on_the_seed_alone() -> None:
    space = AnyText(9)
    assert space.seed(3) == 3
    first = [space.sample() for _ in range(50)]
    assert all(text in space for text in first)
    assert len(set(first)) > 40
    again = AnyText(9, seed=3)
    assert [again.sample() for _ in range(50)] == first
    assert AnyText(0).sample() == ""


@pytest.mark.parametrize("argument", ["mask", "probability"])
def test_there_is_no_alphabet_to_mask(argument: str) -> None:
    with pytest.raises(ValueError, match="takes neither a mask nor probabilities"):
        AnyText(9).sample(**{argument: (3, None)})


def test_spaces_of_one_length_are_equal() -> None:
    assert AnyText(4) == AnyText(4)
    assert AnyText(4) != AnyText(5)
    assert AnyText(4) != AnyText()
    assert AnyText(4) != Text(4)
    assert Text(4) != AnyText(4)
    assert (repr(AnyText(4)), repr(AnyText())) == ("AnyText(4)", "AnyText()")
    for copy in (deepcopy(AnyText(4, seed=1)), pickle.loads(pickle.dumps(AnyText(4, seed=1)))):
        assert copy == AnyText(4)
        assert copy.sample() == AnyText(4, seed=1).sample()


def test_a_batch_is_a_tuple_of_strings() -> None:
    space = AnyText(20)
    batched = batch_space(space, 5)
    assert TEXTS in batched
    assert (*TEXTS[1:], "x" * 21) not in batched
    batched.seed(1)
    assert batched.sample() in batched
    empty = create_empty_array(space, 5)
    assert empty == ("",) * 5
    assert concatenate(space, TEXTS, empty) == TEXTS
    assert tuple(iterate(batched, TEXTS)) == TEXTS
    assert space.from_jsonable(space.to_jsonable(TEXTS)) == list(TEXTS)


@pytest.mark.parametrize(
    "call",
    [flatdim, flatten_space, lambda s: flatten(s, "☕"), lambda s: unflatten(s, np.zeros(20))],
    ids=["flatdim", "flatten_space", "flatten", "unflatten"],
)
def test_text_is_never_flattened(call: Any) -> None:
    with pytest.raises(ValueError, match=r"AnyText\(20\) cannot be flattened: .* tokenize"):
        call(AnyText(20))


def test_text_in_another_space_is_not_flattened_either() -> None:
    space = Dict(page=AnyText(20), step=Discrete(3))
    assert not space.is_np_flattenable
    with pytest.raises(ValueError, match="cannot be flattened"):
        flatdim(space)
    with pytest.raises(ValueError, match="cannot be flattened"):
        flatten(space, {"page": "☕", "step": 1})


def test_it_has_no_shared_memory() -> None:
    with pytest.raises(CustomSpaceError, match=r"AnyText.*create_shared_memory"):
        create_shared_memory(AnyText(20), n=2)
