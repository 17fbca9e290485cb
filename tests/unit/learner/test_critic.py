"""The critic of PPO: losses, values and updates, and that it is saved but not published."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hgpo_rllib.advantages import EstimatorSettings
from hgpo_rllib.advantages.baselines import gae
from hgpo_rllib.advantages.diagnostics import explained_variance
from hgpo_rllib.algorithm import HGPOConfig
from hgpo_rllib.learner.batching import signal_columns, token_columns
from hgpo_rllib.learner.critic import Critic, value_losses
from hgpo_rllib.rollout.scoring import score
from hgpo_rllib.settings.algorithm import AlgorithmSettings
from hgpo_rllib.settings.learner import LearnerSettings
from tests.unit.learner.learner_reference import (
    add_values,
    assert_equal,
    critic_of,
    crossed,
    frozen_of,
    llm_of,
    make_columns,
    make_learner,
    parameters_and_gradients,
    reference_update,
    step_losses,
    update,
    value_loss,
    value_of,
)
from tests.unit.rollout.episodes import group

pytestmark = pytest.mark.usefixtures("exact_norms")
KINDS = ("head", "separate")
COMMON: dict[str, Any] = {
    "estimator": "ppo",
    "lr": 3e-3,
    "weight_decay": 0.1,
    "kl_coeff": 0.5,
    "grad_clip": 1e9,
    "mismatch_alarm": None,
    "micro_batch_tokens": 25,
    "value_clip": 0.2,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "clipped": {},
    "not clipped": {"value_clip": None},
    "coefficient": {"value_coeff": 2.0},
    "rate": {"critic_lr": 3e-2},
    "gradient clip": {"grad_clip": 0.05},
    "seq-mean": {"loss_aggregation": "seq-mean"},
    "micro-batch-mean": {"loss_aggregation": "micro-batch-mean", "micro_batch_steps": 2},
    "recomputed": {"old_logp": "recomputed", "importance_cap": 1.2, "kl_coeff": 0},
}
SHAPES: dict[str, dict[str, Any]] = {
    "one mini-batch": {"minibatch_size": 100},
    "three": {"minibatch_size": 3},
    "two epochs": {"minibatch_size": 4, "num_epochs": 2},
}


def test_values_in_a_bfloat16_pass_are_not_rounded() -> None:
    """The head computes in float32, although autocast would round its outputs to bfloat16."""
    torch.manual_seed(0)
    critic = Critic(16, None, 1)
    torch.nn.init.normal_(critic.head.weight)
    hidden = torch.randn(1, 9, 16, dtype=torch.bfloat16)
    position = torch.arange(9)
    batch = {"value_position": position} | dict.fromkeys(
        ("value_sequence", "value_column"), torch.zeros_like(position)
    )
    with torch.autocast("cpu", torch.bfloat16):
        values = critic(batch, hidden)
    torch.testing.assert_close(values, critic.head(hidden[0].float())[:, 0])


class TestValueLosses:
    @pytest.mark.parametrize(
        ("value", "target", "loss", "cut"),
        [
            (2.0, 5.0, 4.5, False),  # at the old value
            (2.4, 5.0, 3.38, False),  # inside the clip: the plain loss
            (3.0, 5.0, 3.125, True),  # clipped towards the target: the loss at 2.5
            (1.0, 5.0, 8.0, False),  # away from the target: the plain loss, with gradient
            (6.0, 2.5, 6.125, False),  # beyond the clip, but the gradient points back
            (2.9, 2.45, 0.10125, False),  # past the target: the plain loss is larger
        ],
    )
    def test_by_hand(self, value: float, target: float, loss: float, cut: bool) -> None:
        """Losses match manual values for an old value of 2 and a clip of 0.5."""
        v = torch.tensor([value], dtype=torch.float64, requires_grad=True)
        old, to = (torch.tensor([x], dtype=torch.float64) for x in (2.0, target))
        got, flag = value_losses(v, old, to, 0.5)
        assert got.item() == pytest.approx(loss)
        assert flag.item() is cut
        (gradient,) = torch.autograd.grad(got.sum(), v)
        assert gradient.item() == pytest.approx(0 if cut else value - target)

    @given(st.integers(0, 999), st.sampled_from([None, 0.1, 0.5]))
    def test_against_finite_differences(self, seed: int, clip: float | None) -> None:
        """Gradients match finite differences; the loss is the larger of plain and clipped loss."""
        generator = torch.Generator().manual_seed(seed)
        value, old, target = torch.randn(3, 20, dtype=torch.float64, generator=generator)
        value.requires_grad_()
        loss, _ = value_losses(value, old, target, clip)
        (gradient,) = torch.autograd.grad(loss.sum(), value)
        with torch.no_grad():
            up, down = (value_losses(value + e, old, target, clip)[0] for e in (1e-6, -1e-6))
            smooth = torch.ones(20, dtype=torch.bool)
            if clip is not None:  # exclude the corners
                edge = ((value - old).abs() - clip).abs()
                square = (old + (value - old).clamp(-clip, clip) - target).square()
                smooth = (edge > 1e-5) & (((value - target).square() - square).abs() != 0)
                smooth |= (value - old).abs() < clip - 1e-5
                assert torch.allclose(loss, torch.max((value - target).square(), square) / 2)
        torch.testing.assert_close(
            gradient[smooth], ((up - down) / 2e-6)[smooth], rtol=1e-5, atol=1e-7
        )

    def test_rounding_is_no_clipping(self) -> None:
        """Inside the clip, the loss equals the unclipped one to the last bit in float32."""
        generator = torch.Generator().manual_seed(0)
        value, old, target = torch.randn(3, 1000, generator=generator)
        old = value + 0.1 * old.clamp(-2, 2)
        loss, cut = value_losses(value, old, target, 0.5)
        assert not cut.any()
        assert loss.equal(value_losses(value, value, target, None)[0])


@pytest.mark.parametrize(("options", "shape"), crossed(OPTIONS, SHAPES, "clipped"))
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_reference(
    model_path: str, kind: str, options: dict[str, Any], shape: dict[str, Any]
) -> None:
    """Gradients of policy and critic equal those of the reference to 1e-8."""
    chosen = {k: v for k, v in (COMMON | options | shape).items() if k != "estimator"}
    learner = make_learner(model_path, estimator="ppo", critic=kind, **chosen)
    columns = add_values(make_columns(llm_of(learner)), learner)
    critic = copy.deepcopy(critic_of(learner))
    policy = reference_update(
        llm_of(learner),
        frozen_of(learner),
        columns,
        LearnerSettings(critic=kind, **chosen),
        critic,
    )
    update(learner, columns)
    got = parameters_and_gradients(llm_of(learner), critic_of(learner))
    assert_equal(got, parameters_and_gradients(policy, critic), 1e-8)


def test_the_options_matter(model_path: str) -> None:
    """All options change the update of these batches; otherwise the test above would be void."""
    results: dict[str, Tensor] = {}
    for kind in KINDS:
        for name, options in OPTIONS.items():
            learner = make_learner(model_path, critic=kind, **COMMON | options | SHAPES["three"])
            update(learner, add_values(make_columns(llm_of(learner)), learner))
            of_both = parameters_and_gradients(llm_of(learner), critic_of(learner))
            results[f"{kind}, {name}"] = torch.cat([p.flatten() for p in of_both])
    names = list(results)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            if len(results[first]) == len(results[second]):
                assert (results[first] - results[second]).abs().max() > 1e-5, (first, second)


def test_the_reported_losses(model_path: str) -> None:
    """`loss` is the whole objective, and `policy_loss` is without KL, entropy and critic."""
    chosen = {"entropy_coeff": 0.3, "value_coeff": 2.0, "value_clip": 0.05, "minibatch_size": 100}
    learner = make_learner(model_path, critic="head", **COMMON | chosen)
    llm, critic, frozen = llm_of(learner), critic_of(learner), frozen_of(learner)
    columns = add_values(make_columns(llm), learner)
    settings = learner._settings
    alone = settings.model_copy(update={"entropy_coeff": 0.0})
    with torch.no_grad():
        whole, policy = (
            torch.cat([step_losses(llm, llm, model, columns, s, row) for row in range(7)]).mean()
            for model, s in ((frozen, settings), (None, alone))
        )
        values = torch.stack([value_of(llm, critic, columns, row) for row in range(7)])
        losses = torch.stack([value_loss(llm, critic, columns, settings, row) for row in range(7)])
    cut = losses > (values - columns["value_target"]).square() / 2 + 1e-9
    assert 0 < cut.sum() < 3
    expected = {"policy_loss": policy, "value_loss": losses.mean()}
    expected["loss"] = whole + 2 * losses.mean()
    expected["value_clip_fraction"] = cut.double().mean()
    results = update(learner, columns)
    for name, value in expected.items():
        assert results[name] == pytest.approx(value.item(), abs=1e-7), name


@pytest.mark.parametrize("kind", KINDS)
class TestCritic:
    def test_values(self, model_path: str, kind: str) -> None:
        """Values equal those of single prompts in row order, whatever the size of passes."""
        for tokens in (1, 20, 10**6):
            chosen = COMMON | {"micro_batch_tokens": tokens}
            learner = make_learner(model_path, critic=kind, **chosen)
            columns, critic = make_columns(llm_of(learner), 8), critic_of(learner)
            expected = [value_of(llm_of(learner), critic, columns, row).item() for row in range(8)]
            np.testing.assert_allclose(learner.values(columns), expected, rtol=0, atol=1e-12)

    def test_it_learns_the_returns(self, model_path: str, kind: str) -> None:
        """A head of zeros learns targets that differ by prompt, even without a policy signal."""
        learner = make_learner(
            model_path, critic=kind, **COMMON | {"lr": 3e-2, "value_clip": None, "kl_coeff": 0}
        )
        columns = make_columns(llm_of(learner), 8)
        with torch.no_grad():
            for parameter in critic_of(learner).head.parameters():
                parameter.zero_()
        target = np.array([0.0, 10, 0, 10, 5, 0, 0, 10])
        columns |= {"advantage": torch.zeros(8), "value_target": torch.from_numpy(target).float()}
        losses = []
        for _ in range(25):
            value = learner.values(columns)
            results = update(learner, columns | {"value": torch.from_numpy(value).float()})
            losses.append(results["value_loss"])
        assert losses[0] == pytest.approx(np.mean(target**2) / 2)
        assert losses[-1] < 0.02 * losses[0]
        assert explained_variance(value, target) > 0.95

    def test_values_become_signals(self, model_path: str, kind: str) -> None:
        """Values give GAE advantages; targets use the advantages before normalization."""
        learner = make_learner(model_path, critic=kind, **COMMON | {"micro_batch_tokens": 7})
        learner.policy.float()
        settings = AlgorithmSettings(estimator="ppo", gamma=0.9, gae_lambda=0.7)
        trajectories = [*group("a"), *group("b")]
        columns = token_columns(trajectories)
        columns |= signal_columns(score(trajectories, settings, learner.values(columns)))
        llm, critic = llm_of(learner), critic_of(learner)
        with torch.no_grad():
            values = [value_of(llm, critic, columns, row).item() for row in range(12)]
        np.testing.assert_allclose(columns["value"], values, atol=1e-5)
        assert np.ptp(values) > 0.1, "all the same: their order would not matter"
        value = columns["value"].double().numpy()
        scored = score(trajectories, settings, value)
        raw = gae(scored.steps, value, 0.9, 0.7)
        np.testing.assert_allclose(columns["value_target"], value + raw, atol=1e-5)
        np.testing.assert_allclose(columns["advantage"], (raw - raw.mean()) / raw.std(), atol=1e-4)

    def test_nothing_of_it_is_published_and_all_of_it_is_saved(
        self, model_path: str, kind: str
    ) -> None:
        """The published weights have no critic, and RLlib's state saves and restores it."""
        first, second = (make_learner(model_path, critic=kind, **COMMON) for _ in range(2))
        columns = add_values(make_columns(llm_of(first)), first)
        for learner in (first, second):  # the type in which RLlib restores
            learner.policy.float()
            frozen_of(learner).float()
        update(first, columns)
        assert not any("critic" in name for name in llm_of(first).state_dict())
        second.set_state(first.get_state())
        update(first, columns)
        update(second, columns)
        got, expected = (parameters_and_gradients(llm_of(x), critic_of(x)) for x in (second, first))
        assert all(a.equal(b) for a, b in zip(got, expected, strict=True))

    def test_a_bad_gradient_of_the_critic_is_a_bad_batch(self, model_path: str, kind: str) -> None:
        """An infinite value target makes the mini-batch a bad one, which is skipped."""
        learner = make_learner(model_path, critic=kind, **COMMON, on_bad_batch="skip")
        columns = add_values(make_columns(llm_of(learner)), learner)
        columns["value_target"][3] = float("inf")
        before = [p.detach().clone() for p in critic_of(learner).parameters()]
        assert update(learner, columns)["skipped_batches"] == 1
        after = list(critic_of(learner).parameters())
        assert all(a.equal(b) for a, b in zip(after, before, strict=True))


def test_a_fresh_critic_says_0(model_path: str) -> None:
    """A new critic's head is 0, and a separate critic starts with a copy of the policy's trunk."""
    for kind in KINDS:
        config = HGPOConfig().training(model_path=model_path, critic=kind, estimator="ppo")
        critic = config.get_default_rl_module_spec()
        assert critic.model_config["critic"] == kind
        module = critic.module_class(model_config=critic.model_config)
        assert not any(p.any() for p in module.scorer.critic.head.parameters())
        if kind == "separate":
            own, policy_state = (
                module.scorer.critic.trunk.state_dict(),
                module.llm.model.state_dict(),
            )
            assert all(own[name].equal(policy_state[name]) for name in policy_state)
            assert not {p.data_ptr() for p in own.values()} & {
                p.data_ptr() for p in policy_state.values()
            }


def test_targets_of_lambda_one_are_returns() -> None:
    """With lambda 1, targets are returns, with the penalty of invalid steps, for any values."""
    settings = AlgorithmSettings(estimator="ppo", gae_lambda=1.0, invalid_penalty=0.25)
    scored = score(group(), settings, np.sin(np.arange(6.0)))
    np.testing.assert_allclose(scored.value_target, scored.steps.step_return, atol=1e-12)
    assert settings.estimator_settings() == EstimatorSettings(gae_lambda=1.0)
