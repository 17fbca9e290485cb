"""The clean-up when an algorithm does not start, and the warning about anchors."""

import logging
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.rllib.algorithms.algorithm import Algorithm

from hgpo_rllib import algorithm
from hgpo_rllib.advantages import EstimatorSettings
from hgpo_rllib.advantages.groups import compare_levels
from hgpo_rllib.algorithm import HGPO, HGPOConfig
from hgpo_rllib.rollout.scoring import ScoredTrajectories
from tests.unit.advantages.advantage_batches import arrays


class LearnerGroup:
    """An object that RLlib creates while it starts."""


def test_a_failed_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is stopped and RLlib's objects are freed, even while the error is referenced.

    The folder that RLlib made in the home directory is removed.
    """
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
    hgpo.config = HGPOConfig().training(model_path="/model", memory_length=2)
    hgpo._storage, hgpo._logdir = None, str(tmp_path / "logs")
    (tmp_path / "logs").mkdir()
    with pytest.raises(RuntimeError, match="no learner started") as error:
        hgpo.setup(hgpo.config)
    assert error.value.__traceback__ is not None
    assert [group() for group in made] == [None]
    assert stopped == [True]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("estimator", "role_estimators", "warnings"),
    [("hgpo", {}, 1), ("grpo", {}, 0), ("grpo", {"planner": "hgpo"}, 1)],
)
def test_useless_anchors_are_warned_of_once(
    caplog: pytest.LogCaptureFixture, estimator: str, role_estimators: dict[str, str], warnings: int
) -> None:
    """The warning is logged once, and only if an estimator uses anchors."""
    hgpo = object.__new__(HGPO)
    hgpo.config = HGPOConfig().training(estimator=estimator, role_estimators=role_estimators)
    hgpo._anchors_warned = False
    steps = arrays([(0, [7] * 5, [0.0] * 5)])
    levels = tuple(compare_levels(steps, EstimatorSettings()))
    scored = ScoredTrajectories([], steps, steps.step_return, levels)
    with caplog.at_level(logging.WARNING, "hgpo_rllib"):
        for _ in range(2):
            hgpo._check_anchors(scored)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == warnings
    assert all(text.startswith("algorithm.anchor=observation: a step ") for text in messages)
