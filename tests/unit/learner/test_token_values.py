"""Critics of tokens: values, losses, updates and settings, against plain implementations."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hgpo_rllib.advantages.baselines import value_targets
from hgpo_rllib.agent import Span
from hgpo_rllib.algorithm import HGPOConfig
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.learner.batching import signal_columns, token_columns
from hgpo_rllib.learner.critic import value_weights
from hgpo_rllib.learner.learner import HGPOLearner
from hgpo_rllib.rollout.scoring import score
from hgpo_rllib.settings.algorithm import AlgorithmSettings
from tests.unit.learner.learner_reference import (
    assert_equal,
    critic_of,
    llm_of,
    make_columns,
    make_learner,
    step_losses,
    update,
)
from tests.unit.rollout.episodes import group

pytestmark = pytest.mark.usefixtures("exact_norms")
COMMON: dict[str, Any] = {
    "lr": 3e-3,
    "critic_lr": 1e-2,
    "kl_coeff": 0,
    "weight_decay": 0.1,
    "grad_clip": 1e9,
    "minibatch_size": 100,
    "micro_batch_tokens": 25,
    "mismatch_alarm": None,
    "value_clip": 0.2,
}
KINDS: dict[str, dict[str, Any]] = {
    "head": {"critic": "head"},
    "separate": {"critic": "separate"},
    "one layer": {"critic": "separate", "critic_layers": 1},
}
TOKEN_ESTIMATORS = ("ppo_tokens", "vetta")
every_kind = pytest.mark.parametrize("kind", [pytest.param(v, id=k) for k, v in KINDS.items()])
every_estimator = pytest.mark.parametrize("estimator", TOKEN_ESTIMATORS)


def plain_values(learner: HGPOLearner, columns: dict[str, Tensor], row: int) -> Tensor:
    """Return the values of one response, computed alone: of the turn, then before each token."""
    prompt = columns["prompt_ids"][row, : columns["prompt_length"][row]].long()
    response = columns["response_ids"][row, : columns["response_length"][row]].long()
    critic = critic_of(learner)
    assert critic is not None
    trunk = llm_of(learner).model if critic.trunk is None else critic.trunk
    hidden = trunk(input_ids=torch.cat([prompt, response])[None]).last_hidden_state[0]
    outputs = critic.head(hidden[len(prompt) - 1 : -1])
    return torch.cat([outputs[:1, 0], outputs[:, -1]])


@every_kind
@every_estimator
def test_values_are_those_of_single_responses(
    model_path: str, estimator: str, kind: dict[str, Any]
) -> None:
    """Values do not depend on how rows are batched, and are NaN after a response."""
    learner = make_learner(model_path, estimator=estimator, **COMMON | kind)
    columns = make_columns(llm_of(learner), 8)
    got = learner.values(columns)
    assert got.shape == (8, 6)
    for row in range(8):
        with torch.no_grad():
            expected = plain_values(learner, columns, row).numpy()
        np.testing.assert_allclose(got[row, : len(expected)], expected, rtol=0, atol=1e-12)
        assert np.isnan(got[row, len(expected) :]).all()
    alike = np.allclose(got[:, 0], got[:, 1])
    assert alike == (estimator == "ppo_tokens"), "only VETTA has two value functions"


def test_a_critic_of_the_first_layers(model_path: str) -> None:
    """`critic_layers` copies the policy's first layers, at most all of them."""
    config = HGPOConfig().training(
        model_path=model_path, estimator="vetta", critic="separate", critic_layers=1
    )
    spec = config.get_default_rl_module_spec()
    module = spec.module_class(model_config=spec.model_config)
    policy, trunk = module.llm.model, module.scorer.critic.trunk
    assert len(policy.layers) == 2
    assert len(trunk.layers) == 1
    policy_state = policy.state_dict()
    assert all(value.equal(policy_state[name]) for name, value in trunk.state_dict().items())
    assert module.scorer.critic.head.out_features == 2
    ids = torch.tensor([[3, 1, 4]])
    hidden = policy.layers[0](
        policy.embed_tokens(ids),
        position_embeddings=policy.rotary_emb(policy.embed_tokens(ids), torch.arange(3)[None]),
    )
    hidden = hidden[0] if isinstance(hidden, tuple) else hidden
    got = trunk(input_ids=ids).last_hidden_state
    torch.testing.assert_close(got, policy.norm(hidden).reshape(got.shape))
    spec.model_config["critic_layers"] = 9
    assert len(spec.module_class(model_config=spec.model_config).scorer.critic.trunk.layers) == 2


@every_kind
@every_estimator
def test_an_update_is_that_of_plain_losses(
    model_path: str, estimator: str, kind: dict[str, Any]
) -> None:
    """Gradients equal those of a plain policy loss and value loss over all tokens."""
    learner = make_learner(model_path, estimator=estimator, **COMMON | kind)
    columns = make_columns(llm_of(learner))
    generator = torch.Generator().manual_seed(0)
    columns["advantage"] = torch.randn(7, 5, generator=generator)
    value = torch.from_numpy(learner.values(columns)).float()
    columns["value"] = value + 0.3 * torch.randn(value.shape, generator=generator)
    columns["value_target"] = value + torch.randn(value.shape, generator=generator)
    llm, settings = llm_of(learner), learner._settings
    token_losses = [step_losses(llm, llm, None, columns, settings, row) for row in range(7)]
    turn_losses, residual_losses = [], []
    for row, length in enumerate(columns["response_length"].tolist()):
        v = plain_values(learner, columns, row)
        old, target = (columns[k][row, : length + 1] for k in ("value", "value_target"))
        clipped = torch.min(torch.max(v, old - 0.2), old + 0.2)
        losses = torch.max((v - target) ** 2, (clipped - target) ** 2) / 2
        turn_losses.append(losses[:1])
        residual_losses.append(losses[1:])
    value_loss = torch.cat(residual_losses).mean()
    if estimator == "vetta":
        value_loss = value_loss + torch.cat(turn_losses).mean()
    parameters = list(learner.policy.parameters())
    expected = torch.autograd.grad(torch.cat(token_losses).mean() + 0.5 * value_loss, parameters)
    assert update(learner, columns)["value_loss"] == pytest.approx(value_loss.item(), abs=1e-8)
    assert_equal([p.grad for p in parameters], expected, 1e-8)


@every_estimator
def test_values_become_signals(model_path: str, estimator: str) -> None:
    """The module's values give advantages and value targets for each token."""
    learner = make_learner(model_path, estimator=estimator, critic="head", **COMMON)
    settings = AlgorithmSettings(estimator=estimator, gamma=0.9, gae_lambda=0.7, normalize="mean")
    trajectories = [*group("a"), *group("b")]
    columns = token_columns(trajectories)
    value = learner.values(columns)
    scored = score(trajectories, settings, value)
    signals = signal_columns(scored)
    assert scored.steps.value is not None
    np.testing.assert_array_equal(scored.steps.value, value[:, 0])
    rows, width = columns["response_ids"].shape
    assert signals["advantage"].shape == (rows, width)
    assert signals["value"].shape == signals["value_target"].shape == (rows, 1 + width)
    np.testing.assert_allclose(signals["value"], value, rtol=1e-6)
    present = torch.arange(width) < columns["response_length"][:, None]
    assert not signals["advantage"][~present].any()
    assert signals["advantage"][present].mean().abs() < 1e-6
    of_turns = value_targets(scored.steps, settings.estimator_settings())
    np.testing.assert_allclose(signals["value_target"][:, 0], of_turns, atol=1e-5)
    target = signals["value_target"][:, 1:]
    if estimator == "ppo_tokens":  # here the advantage is target minus value
        raw = (target - signals["value"][:, 1:])[present]
        np.testing.assert_allclose(signals["advantage"][present], raw - raw.mean(), atol=1e-5)
        np.testing.assert_allclose(target[:, 0], signals["value_target"][:, 0], atol=1e-6)
    update(learner, columns | signals)


def test_spans_are_refused() -> None:
    """Spans raise a one-line error, since their advantages belong to roles."""
    trajectories = group("a")
    step = trajectories[0].steps[0]
    spanned = replace(step.turn, spans=(Span(0, 1, "x"),))
    trajectories[0].steps[0] = replace(step, turn=spanned)
    columns = token_columns(trajectories)
    value = np.zeros((len(columns["response_length"]), 1 + columns["response_ids"].shape[1]))
    with pytest.raises(ConfigError, match="estimator vetta: it has advantages of tokens, and"):
        score(trajectories, AlgorithmSettings(estimator="vetta"), value)


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (1, [[0, 1 / 3, 1 / 3]] * 2),
        (2, [[1 / 2, 1 / 3, 1 / 3]] * 2),
        (3, [[1, 1 / 2, 0], [0, 1 / 2, 1]]),
    ],
)
def test_weights_are_those_of_the_mini_batch(outputs: int, expected: list[list[float]]) -> None:
    """Means are over the values of the mini-batch's rows, not over those of the whole batch."""
    nan = float("nan")
    columns = {
        "response_length": torch.tensor([1, 2, 1]),
        "value": torch.zeros(3, 3),
        "value_target": torch.tensor([[1.0, 1, nan], [nan, 1, 1], [1, 1, nan]]),
    }
    got = value_weights(columns, np.array([0, 1]), outputs)[:2]
    np.testing.assert_allclose(got, expected)


def test_tokens_are_centered_in_their_own_response() -> None:
    """If a step has two responses, the tokens of each have the advantage of the turn on average."""
    trajectories = group("a")
    step = trajectories[0].steps[1]
    plan = replace(step.turn, role="planner")
    trajectories[0].steps[1] = replace(step, turn=replace(step.turn, preceding=(plan,)))
    lengths = token_columns(trajectories)["response_length"].numpy()
    value = np.random.default_rng(0).standard_normal((len(lengths), 1 + lengths.max()))
    settings = AlgorithmSettings(estimator="vetta", normalize="mean")
    scored = score(trajectories, settings, value)
    assert scored.token_advantage is not None
    of_plan, of_action = (scored.token_advantage[row, : lengths[row]] for row in (1, 2))
    assert np.ptp(of_plan) > 0.1
    assert of_plan.mean() == pytest.approx(of_action.mean())
