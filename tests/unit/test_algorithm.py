"""What is stopped when an algorithm does not start."""

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from ray.rllib.algorithms.algorithm import Algorithm

from hgpo_rllib import algorithm
from hgpo_rllib.algorithm import HGPO, HGPOConfig


class LearnerGroup:
    """An object that RLlib holds while it starts."""


def test_a_failed_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is stopped, and what RLlib made is deleted while the error is still held."""
    made: list[weakref.ref[LearnerGroup]] = []
    stopped: list[bool] = []

    def fail(self: Any, config: Any) -> None:
        group = LearnerGroup()
        made.append(weakref.ref(group))
        raise RuntimeError("no learner started")

    monkeypatch.setattr(Algorithm, "setup", fail)
    monkeypatch.setattr(algorithm, "load_chat_tokenizer", lambda _: None)
    server = SimpleNamespace(stop=lambda: stopped.append(True))
    monkeypatch.setattr(algorithm, "PolicyServer", lambda *_: server)
    hgpo = object.__new__(HGPO)
    hgpo._run_id = "run"
    hgpo.config = HGPOConfig().training(model_path="/model", memory_length=2)
    with pytest.raises(RuntimeError, match="no learner started") as error:
        hgpo.setup(hgpo.config)
    assert error.value.__traceback__ is not None
    assert [group() for group in made] == [None]
    assert stopped == [True]
