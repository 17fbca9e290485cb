"""The space of text in Gymnasium's functions."""

import pickle
from copy import deepcopy
from typing import Any

import gymnasium
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

import env_wrappers  # noqa: F401 (registers the environments)
from env_wrappers.mixture import MixtureEnv
from env_wrappers.spaces import AnyText

TEXTS = ("", "line\none", "ümlaut ☕ 毛巾", "\x00\u202e", "\ud800")


def test_it_contains_any_script_and_length() -> None:
    assert "☕" * 10**7 in AnyText()
    assert "" in AnyText()
    assert 3 not in AnyText()


def test_samples_depend_on_the_seed_alone() -> None:
    space = AnyText()
    assert space.seed(3) == 3
    first = [space.sample() for _ in range(50)]
    assert all(text in space for text in first)
    assert len(set(first)) > 40
    again = AnyText(seed=3)
    assert [again.sample() for _ in range(50)] == first


def test_all_such_spaces_are_equal() -> None:
    assert AnyText() == AnyText(seed=1)
    assert AnyText() != Text(4)
    assert Text(4) != AnyText()
    assert repr(AnyText(seed=1)) == "AnyText()"
    for copy in (deepcopy(AnyText(seed=1)), pickle.loads(pickle.dumps(AnyText(seed=1)))):
        assert copy == AnyText()
        assert copy.sample() == AnyText(seed=1).sample()


def test_environments_do_not_share_a_space() -> None:
    """Environments do not share spaces, so that sampling in one does not affect the others."""
    part = {"env_id": "hgpo/Client-v0", "options": {"name": "words", "tasks": {"train": 1}}}
    envs: list[gymnasium.Env[str, str]] = []
    for _ in range(2):
        env = MixtureEnv({"words": part})
        envs += [env, env.environments["words"].unwrapped]
    spaces = [space for env in envs for space in (env.observation_space, env.action_space)]
    assert len({id(space) for space in spaces}) == 8


def test_a_batch_is_a_tuple_of_strings() -> None:
    space = AnyText()
    batched = batch_space(space, 5)
    assert TEXTS in batched
    assert (*TEXTS[1:], 3) not in batched
    batched.seed(1)
    assert batched.sample() in batched
    empty = create_empty_array(space, 5)
    assert empty == ("",) * 5
    assert concatenate(space, TEXTS, empty) == TEXTS
    assert tuple(iterate(batched, TEXTS)) == TEXTS
    assert space.from_jsonable(space.to_jsonable(TEXTS)) == list(TEXTS)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (flatdim, ValueError),
        (flatten_space, NotImplementedError),
        (lambda s: flatten(s, "☕"), NotImplementedError),
        (lambda s: unflatten(s, np.zeros(20)), NotImplementedError),
    ],
    ids=["flatdim", "flatten_space", "flatten", "unflatten"],
)
def test_text_is_never_flattened(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="AnyText"):
        call(AnyText())


def test_text_in_another_space_is_not_flattened_either() -> None:
    space = Dict(page=AnyText(), step=Discrete(3))
    assert not space.is_np_flattenable
    with pytest.raises(NotImplementedError, match="AnyText"):
        flatten(space, {"page": "☕", "step": 1})


def test_it_has_no_shared_memory() -> None:
    with pytest.raises(CustomSpaceError, match=r"AnyText.*create_shared_memory"):
        create_shared_memory(AnyText(), n=2)
