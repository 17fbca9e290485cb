"""The losses of tokens, against manual values, expectations and finite differences."""

from functools import partial
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hgpo_rllib.learner.losses import (
    cispo_loss,
    clamp_log_ratio,
    clipped_policy_loss,
    gated_distillation,
    importance_weights,
    kl_estimate,
    mismatch,
    token_losses,
)
from hgpo_rllib.settings.learner import KLEstimator, LearnerSettings

ESTIMATORS = get_args(KLEstimator)


class TestClippedLoss:
    @pytest.mark.parametrize(
        ("ratio", "advantage", "dual_clip", "loss", "clipped"),
        [
            (1.0, 2.0, None, -2.0, False),
            (1.25, 2.0, None, -2.5, False),
            (1.5, 2.0, None, -2.6, True),  # clipped above, at 1.3
            (0.5, 2.0, None, -1.0, False),  # not clipped: a low ratio, advantage > 0
            (1.0, -2.0, None, 2.0, False),
            (0.9, -2.0, None, 1.8, False),
            (0.5, -2.0, None, 1.6, True),  # clipped below, at 0.8
            (1.5, -2.0, None, 3.0, False),  # not clipped: a high ratio, advantage < 0
            (1.5, 0.0, None, 0.0, False),
            (2.9, -2.0, 3.0, 5.8, False),
            (3.1, -2.0, 3.0, 6.0, True),  # at most 3 * 2, without gradient
            (0.5, -2.0, 3.0, 1.6, True),  # the lower clip
            (1.0, 0.5, 3.0, -0.5, False),
            (3.1, 2.0, 3.0, -2.6, True),  # the dual clip applies to negative advantages only
            (3.1, 0.0, 3.0, 0.0, False),
        ],
    )
    def test_by_hand(
        self, ratio: float, advantage: float, dual_clip: float | None, loss: float, clipped: bool
    ) -> None:
        """Loss and gradient match manual values; the gradient is 0 where the loss is clipped."""
        behavior = torch.tensor([-1.5], dtype=torch.float64)
        logp = (behavior + np.log(ratio)).requires_grad_()
        got, flag = clipped_policy_loss(
            clamp_log_ratio(logp - behavior).exp(), torch.tensor([advantage]), 0.2, 0.3, dual_clip
        )
        assert got.item() == pytest.approx(loss)
        assert flag.item() is clipped
        got.sum().backward()
        assert logp.grad is not None
        assert logp.grad.item() == pytest.approx(0.0 if clipped else -advantage * ratio)

    def test_extreme_ratios_stay_finite(self) -> None:
        """Loss and gradient are finite even if a token's probability changes completely."""
        logp = torch.tensor([-1000.0, 0.0], requires_grad=True)
        ratio = clamp_log_ratio(logp - torch.tensor([0.0, -1000.0])).exp()
        loss, _ = clipped_policy_loss(ratio, torch.tensor([1.0, -1.0]), 0.2, 0.2, None)
        loss.sum().backward()
        assert loss.isfinite().all()
        assert logp.grad is not None
        assert logp.grad.isfinite().all()

    def test_log_ratios_are_clamped_at_20(self) -> None:
        """Log-ratios are clamped to ±20 and have no gradient outside."""
        log_ratio = torch.tensor([-1000.0, -19.0, 19.0, 1000.0], requires_grad=True)
        clamped = clamp_log_ratio(log_ratio)
        assert clamped.tolist() == [-20, -19, 19, 20]
        (gradient,) = torch.autograd.grad(clamped.sum(), log_ratio)
        assert gradient.tolist() == [0, 1, 1, 0]


class TestCISPO:
    @pytest.mark.parametrize("advantage", [2.0, -2.0, 0.0])
    @pytest.mark.parametrize(
        ("ratio", "weight"), [(1.2, 1.2), (1.5, 1.3), (0.85, 0.85), (0.5, 0.8), (1e30, 1.3)]
    )
    def test_by_hand(self, ratio: float, weight: float, advantage: float) -> None:
        """The loss has a gradient through the log-probability, even for clipped ratios."""
        logp = torch.tensor([-1.5], dtype=torch.float64, requires_grad=True)
        given = torch.tensor([advantage], dtype=torch.float64)
        logs = logp - logp.detach() + np.log(ratio)
        got, flag = cispo_loss(logp, clamp_log_ratio(logs).exp(), given, 0.2, 0.3)
        assert got.item() == pytest.approx(-weight * advantage * -1.5)
        assert flag.item() is (ratio != weight)
        got.sum().backward()
        assert logp.grad is not None
        assert logp.grad.item() == pytest.approx(-weight * advantage)


class TestKL:
    @given(st.floats(-15, 0), st.floats(-15, 0), st.sampled_from(["k2", "k3"]))
    def test_sign(self, logp: float, reference: float, estimator: Any) -> None:
        """k2 and k3 are never negative (in float64), and 0 for equal probabilities."""
        a, b = torch.tensor([logp, reference], dtype=torch.float64)
        assert kl_estimate(a, b, estimator) >= 0
        assert kl_estimate(a, a, estimator) == 0

    def test_by_hand(self) -> None:
        """The estimates match manual values for d = 0.5 and d = -3, with and without clamp."""
        logp = torch.tensor([-2.0, -1.0], dtype=torch.float64)
        reference = torch.tensor([-1.5, -4.0], dtype=torch.float64)
        values: dict[Any, list[float]] = {
            "k1": [-0.5, 3.0],
            "k2": [0.125, 4.5],
            "k3": [np.exp(0.5) - 1.5, np.exp(-3.0) + 2.0],
        }
        for estimator, expected in values.items():
            assert kl_estimate(logp, reference, estimator).tolist() == pytest.approx(expected)
            clamped = kl_estimate(logp, reference, estimator, clamp=0.3).tolist()
            assert clamped == pytest.approx(np.clip(expected, -0.3, 0.3).tolist())

    @pytest.mark.parametrize("estimator", ["k1", "k3"])
    def test_expectation(self, estimator: Any) -> None:
        """The expectation of k1 and k3 under the policy is KL(policy || reference)."""
        policy, reference = self.two_policies()
        kl = (policy.exp() * (policy - reference)).sum()
        expected = (policy.exp() * kl_estimate(policy, reference, estimator)).sum()
        torch.testing.assert_close(expected, kl)
        samples = torch.distributions.Categorical(logits=policy).sample((200_000,))
        mean = kl_estimate(policy[samples], reference[samples], estimator).mean()
        assert mean.item() == pytest.approx(kl.item(), rel=0.02)

    def test_mean_gradients(self) -> None:
        """On average, k1 has no gradient, k2 that of KL(policy || reference), k3 the reverse's."""
        start, reference = self.two_policies()
        logits = start.clone().requires_grad_()
        policy = logits.log_softmax(-1)

        def gradient(value: Tensor) -> Tensor:
            return torch.autograd.grad(value, logits, retain_graph=True)[0]

        forward = gradient((policy.exp() * (policy - reference)).sum())
        backward = gradient((reference.exp() * (reference - policy)).sum())
        expected = {"k1": torch.zeros_like(forward), "k2": forward, "k3": backward}
        assert not torch.allclose(forward, backward)
        for estimator in ESTIMATORS:
            drawn = start.exp()  # sampling probabilities, which have no gradient
            got = gradient((drawn * kl_estimate(policy, reference, estimator)).sum())
            torch.testing.assert_close(got, expected[estimator], rtol=0, atol=1e-12)

    @staticmethod
    def two_policies() -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        policy, reference = torch.randn(2, 5, dtype=torch.float64).log_softmax(-1)
        return policy, reference


class TestImportanceWeights:
    LEARNER = torch.tensor([0.5, 0.2, 0.9, 0.3]).double().log()
    ENGINE = torch.tensor([0.25, 0.4, 0.6, 0.3]).double().log()  # ratios 2, 0.5, 1.5, 1
    SEQUENCE = torch.tensor([0, 0, 2, 2])  # products 1 and 1.5; sequence 1 has no tokens

    @pytest.mark.parametrize(
        ("level", "cap", "bounds", "weights", "cut"),
        [
            ("token", None, None, [1, 1, 1, 1], [0, 0, 0, 0]),
            ("token", 1.6, None, [1.6, 0.5, 1.5, 1], [1, 0, 0, 0]),
            ("token", 1.0, None, [1, 0.5, 1, 1], [1, 0, 1, 0]),  # a weight of 1 is not truncated
            ("token", None, (0.6, 1.8), [0, 0, 1, 1], [1, 1, 0, 0]),
            ("token", None, (1.0, 1.8), [0, 0, 1, 1], [1, 1, 0, 0]),  # bounds are inclusive
            ("token", None, (0.4, 1.0), [0, 1, 0, 1], [1, 0, 1, 0]),
            ("token", 1.2, (0.6, 1.8), [0, 0, 1.2, 1], [1, 1, 1, 0]),
            ("sequence", 1.2, None, [1, 1, 1.2, 1.2], [0, 0, 1, 1]),
            ("sequence", None, (0.9, 1.4), [1, 1, 0, 0], [0, 0, 1, 1]),
        ],
    )
    def test_by_hand(self, level: Any, cap: Any, bounds: Any, weights: Any, cut: Any) -> None:
        """Truncation and mask match manual values for tokens and for sequences."""
        got, flags = importance_weights(
            self.LEARNER, self.ENGINE, self.SEQUENCE, level, cap, bounds
        )
        assert got.tolist() == pytest.approx(weights)
        assert flags.tolist() == [bool(flag) for flag in cut]

    @pytest.mark.parametrize("level", ["token", "sequence"])
    def test_the_mean_is_corrected(self, level: Any) -> None:
        """The weighted mean over the engine's responses is the mean under the learner."""
        torch.manual_seed(0)
        engine, learner = torch.randn(2, 6, dtype=torch.float64).log_softmax(-1)
        value = torch.randn(6, 6, dtype=torch.float64)  # one value per response of two tokens
        first, second = (
            index.flatten()
            for index in torch.meshgrid(torch.arange(6), torch.arange(6), indexing="ij")
        )
        tokens = torch.stack([first, second], 1).flatten()
        weight, _ = importance_weights(
            learner[tokens], engine[tokens], torch.arange(36).repeat_interleave(2), level, 1e9, None
        )
        weight = weight.reshape(36, 2)
        whole = weight.prod(1) if level == "token" else weight[:, 0]
        chance = (engine[first] + engine[second]).exp()
        under_learner = ((learner[first] + learner[second]).exp() * value.flatten()).sum()
        torch.testing.assert_close((chance * whole * value.flatten()).sum(), under_learner)

    def test_no_gradient(self) -> None:
        """Importance weights have no gradient."""
        learner = self.LEARNER.clone().requires_grad_()
        weight, _ = importance_weights(learner, self.ENGINE, self.SEQUENCE, "sequence", 2.0, None)
        assert not weight.requires_grad


@pytest.mark.parametrize(
    ("chosen", "more"),
    [
        ({}, set()),
        ({"importance_cap": 2.0}, {"importance_weight", "importance_cut_fraction"}),
        ({"importance_mask": (0.5, 2.0)}, {"importance_weight", "importance_cut_fraction"}),
    ],
)
def test_statistics_are_of_what_is_configured(chosen: dict[str, Any], more: set[str]) -> None:
    zeros, step = torch.zeros(2), torch.zeros(2, dtype=torch.long)
    tokens = {"old_logp": zeros, "behavior_logp": zeros, "advantage": zeros, "row": step}
    settings = LearnerSettings(old_logp="recomputed", **chosen)
    losses = token_losses(settings, tokens, {"logp": zeros, "entropy": zeros})
    assert losses.statistics.keys() == {"clip_fraction", "entropy", "ratio_max"} | more


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"ratio_level": "sequence"},
        {"ratio_level": "sequence-mean"},
        {"importance_cap": 2.0, "importance_level": "sequence"},
    ],
)
def test_a_pass_without_tokens(chosen: dict[str, Any]) -> None:
    """A pass without tokens has an empty loss with a gradient, for learners without rows."""
    none, logp = torch.zeros(0), torch.zeros(0, requires_grad=True)
    tokens = {"old_logp": none, "behavior_logp": none, "advantage": none, "row": none.long()}
    settings = LearnerSettings(old_logp="recomputed", **chosen)
    losses = token_losses(settings, tokens, {"logp": logp, "entropy": none})
    assert losses.loss.shape == (0,)
    losses.loss.sum().backward()
    assert logp.grad is not None


def test_mismatch_is_the_kl_from_the_engine() -> None:
    """The expectation of `behavior_kl` under the engine is KL(engine || learner)."""
    torch.manual_seed(0)
    engine, learner = torch.randn(2, 6, dtype=torch.float64).log_softmax(-1)
    values = mismatch(learner, engine)
    kl = (engine.exp() * (engine - learner)).sum()
    torch.testing.assert_close((engine.exp() * values["behavior_kl"]).sum(), kl)
    torch.testing.assert_close(values["behavior_logp_gap_mean"], (learner - engine).abs())


@pytest.mark.parametrize("clamp", [None, 0.4])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradient_of_the_kl(estimator: Any, clamp: float | None) -> None:
    """Gradients match finite differences, away from the kinks of the clamp."""
    reference = torch.linspace(-3, -0.5, 24, dtype=torch.float64)
    ratio = torch.linspace(0.3, 4.1, 24, dtype=torch.float64)
    kl = partial(kl_estimate, reference_logp=reference, estimator=estimator, clamp=clamp)
    assert torch.autograd.gradcheck(kl, (reference + ratio.log()).requires_grad_())


@pytest.mark.parametrize("name", [*ESTIMATORS, "distillation"])
def test_differences_are_clamped_at_20(name: Any) -> None:
    """Values are finite, with gradient 0, if a probability changes completely."""
    logp = torch.tensor([-1000.0, 0.0], requires_grad=True)
    other = torch.tensor([0.0, -1000.0])
    if name == "distillation":
        values = gated_distillation(logp, other)
    else:
        values = kl_estimate(logp, other, name)
    expected = {"k1": [-20, 20], "k2": [200, 200], "k3": [np.expm1(20) - 20, np.exp(-20) + 19]}
    assert values.tolist() == pytest.approx(expected.get(name, [20, 0]), rel=1e-6)
    (gradient,) = torch.autograd.grad(values.sum(), logp)
    assert not gradient.any()


def test_a_small_kl_is_not_rounding_noise() -> None:
    """In float32, k3 of a small difference d is d² / 2."""
    logp, reference = torch.tensor([-1.0]), torch.tensor([-1.0 + 1e-4])
    d = (reference - logp).item()
    assert kl_estimate(logp, reference, "k3").item() == pytest.approx(d**2 / 2, rel=1e-2)


def test_statistics_by_hand() -> None:
    """Statistics are those of each token; the policy loss has importance weights alone."""

    def logs(*values: float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).log()

    tokens = {"old_logp": logs(0.5, 0.5), "behavior_logp": logs(0.25, 0.5)}
    tokens |= {"reference_logp": logs(0.75, 0.25), "advantage": torch.ones(2).double()}
    tokens["row"] = torch.arange(2)
    settings = LearnerSettings(
        old_logp="recomputed", importance_cap=1.6, entropy_coeff=0.5, kl_coeff=2.0
    )
    entropy = torch.tensor([0.3, 0.7]).double()
    got = token_losses(settings, tokens, {"logp": logs(0.75, 0.5), "entropy": entropy})
    kl = np.log(2) - 0.5
    assert got.policy_loss.tolist() == pytest.approx([-1.2 * 1.6, -1])
    assert got.loss.tolist() == pytest.approx([-1.92 - 0.15, -1 - 0.35 + 2 * kl])
    expected = {
        "clip_fraction": [1, 0],
        "entropy": [0.3, 0.7],
        "ratio_max": [1.5, 1],
        "importance_weight": [1.6, 1],
        "importance_cut_fraction": [1, 0],
        "kl": [0, kl],
    }
    assert got.statistics.keys() == expected.keys()
    for name, values in expected.items():
        assert got.statistics[name].double().tolist() == pytest.approx(values, abs=1e-6), name


@pytest.mark.parametrize(
    ("level", "log_ratio"), [("token", 15), ("sequence", 20), ("sequence-mean", 15)]
)
def test_the_ratio_of_a_response_is_clamped(level: Any, log_ratio: float) -> None:
    """The log-ratio is clamped at 20 after it is summed over the tokens of a response."""
    zeros, row = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.long)
    tokens = {"old_logp": zeros - 15, "behavior_logp": zeros, "advantage": zeros, "row": row}
    settings = LearnerSettings(ratio_level=level)
    losses = token_losses(settings, tokens, {"logp": zeros, "entropy": zeros})
    assert losses.statistics["ratio_max"].log().tolist() == pytest.approx([log_ratio] * 2)
