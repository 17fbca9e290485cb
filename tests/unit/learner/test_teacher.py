"""Log-probabilities of a teacher, and distillation from it, against plain implementations."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hgpo_rllib.advantages.hindsight import gear
from hgpo_rllib.agent import Span
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.learner.batching import signal_columns, teacher_columns, token_columns
from hgpo_rllib.learner.losses import gated_distillation
from hgpo_rllib.rollout.scoring import score
from hgpo_rllib.settings.algorithm import AlgorithmSettings
from tests.unit.learner.learner_reference import (
    assert_equal,
    llm_of,
    logp_and_entropy,
    make_columns,
    make_learner,
    step_losses,
    update,
)
from tests.unit.rollout.episodes import SETTINGS, group

pytestmark = pytest.mark.usefixtures("exact_norms")
COMMON: dict[str, Any] = {
    "kl_coeff": 0,
    "grad_clip": 1e9,
    "minibatch_size": 100,
    "micro_batch_tokens": 25,
    "mismatch_alarm": None,
}


def settings(estimator: str, **changes: Any) -> AlgorithmSettings:
    """Return the settings of the group in `episodes`, with another estimator."""
    return SETTINGS.model_copy(update={"estimator": estimator} | changes)


def teacher_of(trajectories: list[Any]) -> np.ndarray:
    """Return random log-probabilities for all response tokens, and NaN after responses."""
    columns = token_columns(trajectories)
    rows, width = columns["response_ids"].shape
    teacher = np.random.default_rng(0).normal(-0.3, 0.3, (rows, width))
    teacher[np.arange(width) >= columns["response_length"].numpy()[:, None]] = np.nan
    return teacher


def planned() -> list[Any]:
    """Return a group in which the first step of the first member has two responses."""
    trajectories = group()
    step = trajectories[0].steps[0]
    turn = replace(step.turn, preceding=(replace(step.turn, role="planner"),))
    trajectories[0].steps[0] = replace(step, turn=turn)
    return trajectories


def test_responses_after_other_prompts(model_path: str) -> None:
    """Each response is scored after its new prompt alone, even if rows shared a sequence."""
    learner = make_learner(model_path, **COMMON)
    columns = make_columns(llm_of(learner)) | {"sequence": torch.tensor([0, 0, 1, 1, 1, 2, 3])}
    prompts = [np.arange(1, 4 + i, dtype=np.int32) for i in range(7)]
    got = learner.token_logp(teacher_columns(columns, prompts))
    assert got.shape == columns["response_ids"].shape
    for row, prompt in enumerate(prompts):
        alone = {"prompt_ids": torch.from_numpy(prompt)[None], "prompt_length": [len(prompt)]}
        alone |= {k: columns[k][row : row + 1] for k in ("response_ids", "response_length")}
        with torch.no_grad():
            expected, _ = logp_and_entropy(llm_of(learner), alone, 0)
        np.testing.assert_allclose(got[row, : len(expected)], expected, atol=1e-12)
        assert np.isnan(got[row, len(expected) :]).all()


def test_the_teacher_is_told_among_what_it_may_choose() -> None:
    """The teacher's columns keep the restrictions and drop the engine's log-probabilities."""
    columns = token_columns(group()) | {"restrictions": torch.zeros(6, 1, 2)}
    told = teacher_columns(columns, [np.array([1, 2], np.int32)] * 6)
    assert told.keys() == {
        "prompt_ids",
        "prompt_length",
        "response_ids",
        "response_length",
        "restrictions",
    }


def test_a_step_has_the_mean_of_its_tokens() -> None:
    """A step's value is the mean over the tokens of its acting response."""
    trajectories = planned()
    teacher = teacher_of(trajectories)
    steps = score(trajectories, settings("hcapo"), teacher=teacher).steps
    assert steps.teacher_nll is not None
    acting = [1, *range(2, 7)]
    np.testing.assert_allclose(steps.teacher_nll, -np.nanmean(teacher[acting], axis=1))


def test_tokens_have_weighted_advantages() -> None:
    """The mean of the tokens' advantages is the step's advantage, and padding has none."""
    trajectories = planned()
    scored = score(trajectories, settings("gear"), teacher=teacher_of(trajectories))
    columns = token_columns(trajectories) | signal_columns(scored)
    lengths = columns["response_length"].numpy()
    sums = columns["advantage"].numpy().sum(1)
    advantage = scored.advantage[[0, *range(6)]]
    np.testing.assert_allclose(sums / lengths, advantage, rtol=1e-6)
    assert columns["advantage"][3].unique().numel() > 1, "all weights are equal: no evidence"
    padding = np.arange(3) >= lengths[:, None]
    assert not columns["advantage"].numpy()[padding].any()
    response, _ = np.nonzero(~padding)
    logp = columns["behavior_logp"].numpy()[~padding].astype(float)
    expected = gear(advantage[response], response, logp, teacher_of(trajectories)[~padding])
    np.testing.assert_allclose(columns["advantage"].numpy()[~padding], expected, rtol=1e-6)


def test_what_gear_cannot_weigh() -> None:
    """Spans, and responses without log-probabilities, raise a one-line error."""
    for change, message in (
        ({"spans": (Span(0, 1, "x"),)}, "estimator gear: it has advantages of tokens, and"),
        ({"behavior_logp": np.full(1, np.nan)}, "estimator gear: the agent records no log-prob"),
    ):
        trajectories = group()
        step = trajectories[0].steps[0]
        trajectories[0].steps[0] = replace(step, turn=replace(step.turn, **change))
        with pytest.raises(ConfigError, match=message):
            score(trajectories, settings("gear"), teacher=teacher_of(trajectories))


def test_distillation_by_hand() -> None:
    """The loss matches a manual computation, and the gate has no gradient."""
    logp = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    loss = gated_distillation(logp, torch.tensor([-0.5, -1.0, -2.0]))
    gates = 1 / (1 + np.exp(-5 * np.array([0.5, 0, -1])))
    np.testing.assert_allclose(loss.detach(), gates * [0.5, 0, -1], rtol=1e-5)
    loss.sum().backward()
    np.testing.assert_allclose(logp.grad, -gates, rtol=1e-5)


def test_an_update_with_distillation(model_path: str) -> None:
    """The loss is the policy loss plus the weighted distillation loss, averaged over all tokens."""
    learner = make_learner(model_path, distillation_coeff=0.3, **COMMON)
    columns = make_columns(llm_of(learner))
    generator = torch.Generator().manual_seed(3)
    columns["teacher_logp"] = columns["behavior_logp"] + torch.randn(7, 5, generator=generator)
    llm, losses = llm_of(learner), []
    for row in range(7):
        logp, _ = logp_and_entropy(llm, columns, row)
        gap = columns["teacher_logp"][row, : len(logp)] - logp
        gated = torch.sigmoid(5 * gap).detach() * gap
        losses.append(0.3 * gated + step_losses(llm, llm, None, columns, learner._settings, row))
    parameters = list(learner.policy.parameters())
    expected = torch.autograd.grad(torch.cat(losses).mean(), parameters)
    update(learner, columns)
    assert_equal([p.grad for p in parameters], expected, 1e-8)


def test_distillation_without_advantages(model_path: str) -> None:
    """Distillation updates the policy even if all advantages are 0; without it, nothing changes."""
    trajectories = [t for t in group() if not t.won]
    for estimator, learns in (("sdar", True), ("grpo", False)):
        scored = score(trajectories, settings(estimator), teacher=teacher_of(trajectories))
        learner = make_learner(model_path, **COMMON)
        columns = token_columns(trajectories) | signal_columns(scored)
        columns["advantage"][:] = 0
        before = [parameter.clone() for parameter in learner.policy.parameters()]
        update(learner, columns)
        after = learner.policy.parameters()
        changed = any(not a.equal(b) for a, b in zip(before, after, strict=True))
        assert changed == learns
