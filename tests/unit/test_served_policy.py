"""The check that served policy and learner agree, with a simulated runner and learner."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hgpo_rllib import served_policy
from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.policy_server.types import STARTING_WEIGHTS, RequestFailedError
from hgpo_rllib.served_policy import check_served_policy

PROBE = np.array([5, 6], np.int32)


def check(monkeypatch: pytest.MonkeyPatch, answer: Any, learner: list[float], limit: Any) -> float:
    config = SimpleNamespace(max_response_tokens=3, temperature=1.0, max_logp_gap=limit)
    runner: Any = SimpleNamespace(
        config=config, weights=STARTING_WEIGHTS, generate=lambda *_: [answer]
    )
    monkeypatch.setattr(served_policy, "on_learners", lambda *_: np.array(learner))
    return check_served_policy(runner, SimpleNamespace(), PROBE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("learner", "limit", "gap"),
    [([-1.0, -2.0], 0.1, 0.0), ([-1.0, -2.5], 0.6, 0.5), ([-1.0, -2.5], None, 0.5)],
)
def test_the_largest_difference(
    monkeypatch: pytest.MonkeyPatch, learner: list[float], limit: float | None, gap: float
) -> None:
    answer = SimpleNamespace(token_ids=np.array([7, 8]), logp=np.array([-1.0, -2.0]))
    assert check(monkeypatch, answer, learner, limit) == pytest.approx(gap)


@pytest.mark.parametrize("wrong", [-2.5, float("nan")])
def test_other_weights_end_the_run(monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    answer = SimpleNamespace(token_ids=np.array([7, 8]), logp=np.array([-1.0, -2.0]))
    match = (
        r"served policy differs .* more than policy_server\.max_logp_gap=0\.1; .* set it to null"
    )
    with pytest.raises(RunStoppedError, match=match):
        check(monkeypatch, answer, [-1.0, wrong], 0.1)


def test_a_probe_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestFailedError, match="too long"):
        check(monkeypatch, RequestFailedError("too long"), [], 0.1)
