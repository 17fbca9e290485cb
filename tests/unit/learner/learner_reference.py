"""A tiny learner in float64, and a plain reference implementation of its update."""

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Text
from ray.rllib.core import DEFAULT_MODULE_ID
from torch import Tensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from hgpo_rllib.algorithm import HGPOConfig
from hgpo_rllib.learner.batching import minibatches, row_sequences
from hgpo_rllib.learner.critic import Critic
from hgpo_rllib.learner.learner import HGPOLearner
from hgpo_rllib.settings.learner import LearnerSettings

SEED = 4
TEMPERATURE = 0.8
QWEN = Qwen2Config(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    max_position_embeddings=64,
    initializer_range=0.3,
)


def save_tiny_model(folder: Path) -> str:
    """Write a random Qwen2 with grouped heads; return its path."""
    torch.manual_seed(0)
    Qwen2ForCausalLM(QWEN).save_pretrained(folder)
    return str(folder)


def crossed(
    options: dict[str, dict[str, Any]], shapes: dict[str, dict[str, Any]], *everywhere: str
) -> list[Any]:
    """Return all options in all shapes as test parameters, most of them in the slow tier.

    The last shape, which includes the features of the others, is of the default tier, and so are
    the options named in `everywhere`.
    """
    *_, last = shapes
    return [
        pytest.param(
            option,
            shape,
            id=f"{name}-{shape_name}",
            marks=() if shape_name == last or name in everywhere else pytest.mark.slow,
        )
        for name, option in options.items()
        for shape_name, shape in shapes.items()
    ]


def build_learner(model_path: str, **settings: Any) -> HGPOLearner:
    """Return RLlib's learner as the algorithm builds it, without the algorithm."""
    config = HGPOConfig().training(model_path=model_path, temperature=TEMPERATURE, **settings)
    config.debugging(seed=SEED)
    return config.build_learner(spaces={DEFAULT_MODULE_ID: (Text(1), Text(1))})


def make_learner(model_path: str, **settings: Any) -> HGPOLearner:
    """Return a learner in float64.

    Its reference model differs from its policy, so that the KL term has a gradient.
    """
    learner = build_learner(model_path, **settings)
    learner.policy.double()
    if (critic := critic_of(learner)) is not None:  # a head of 0 has no gradient for its trunk
        torch.manual_seed(2)
        for parameter in critic.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    if learner._reference is not None:
        torch.manual_seed(1)
        for parameter in learner._reference.double().parameters():
            parameter.add_(0.03 * torch.randn_like(parameter))
    return learner


def update(learner: HGPOLearner, columns: dict[str, Tensor]) -> dict[str, float]:
    """Run one update as RLlib does; return the logged metrics."""
    learner._weights_seq_no += 1
    learner._update({DEFAULT_MODULE_ID: columns})
    logged = learner.metrics.reduce().get(DEFAULT_MODULE_ID, {})
    return {name: stats.peek() for name, stats in logged.items()}


def parameters_and_gradients(*models: torch.nn.Module) -> list[Tensor]:
    """Return copies of the parameters and gradients of all models."""
    parameters = [p for model in models for p in model.parameters()]
    return [p.detach().clone() for p in parameters] + [p.grad.clone() for p in parameters]


def assert_equal(got: Iterable[Tensor], expected: Iterable[Tensor], tolerance: float) -> None:
    """Compare tensors pairwise with an absolute tolerance."""
    torch.testing.assert_close(list(got), list(expected), rtol=0, atol=tolerance)


def llm_of(learner: HGPOLearner) -> PreTrainedModel:
    """Return the learner's policy model."""
    return learner.policy.llm


def critic_of(learner: HGPOLearner) -> Critic | None:
    """Return the learner's critic, if it has one."""
    return learner.policy.scorer.critic


def frozen_of(learner: HGPOLearner) -> PreTrainedModel | None:
    """Return the reference model of the KL term, if there is one."""
    return None if learner._reference is None else learner._reference.llm


def make_columns(
    model: PreTrainedModel, steps: int = 7, seed: int = 0, noise: float = 0.4
) -> dict[str, Tensor]:
    """Return random steps; every third has advantage 0.

    The engine's log-probabilities differ from the model's by normal errors of scale `noise`.
    """
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    columns = {
        "prompt_ids": integers(1, 50, steps, 9).int(),
        "prompt_length": integers(1, 10, steps),
        "response_ids": integers(1, 50, steps, 5).int(),
        "response_length": integers(1, 6, steps),
        "advantage": torch.randn(steps, generator=generator) * (torch.arange(steps) % 3 > 0),
        "behavior_logp": torch.zeros(steps, 5),
    }
    with torch.no_grad():
        for step in range(steps):
            logp, _ = logp_and_entropy(model, columns, step)
            error = noise * torch.randn(len(logp), generator=generator, dtype=logp.dtype)
            columns["behavior_logp"][step, : len(logp)] = (logp + error).float()
    return columns


def add_values(columns: dict[str, Tensor], learner: HGPOLearner) -> dict[str, Tensor]:
    """Return the columns with values near those of the critic, and targets further away."""
    generator = torch.Generator().manual_seed(0)
    steps, critic = len(columns["advantage"]), critic_of(learner)
    assert critic is not None
    with torch.no_grad():
        values = [value_of(llm_of(learner), critic, columns, step) for step in range(steps)]
    value = torch.stack(values) + 0.3 * torch.randn(steps, generator=generator)
    target = value + torch.randn(steps, generator=generator)
    return columns | {"value": value.float(), "value_target": target.float()}


def value_of(
    policy: PreTrainedModel, critic: Critic, columns: dict[str, Tensor], step: int
) -> Tensor:
    """Return the critic's value of one step, computed alone."""
    prompt = columns["prompt_ids"][step, : columns["prompt_length"][step]].long()
    trunk = policy.model if critic.trunk is None else critic.trunk
    last = trunk(input_ids=prompt[None]).last_hidden_state[0, -1]
    return last @ critic.head.weight[0] + critic.head.bias[0]


def logp_and_entropy(
    model: PreTrainedModel, columns: dict[str, Tensor], step: int
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies of one step's response, computed alone."""
    prompt = columns["prompt_ids"][step, : columns["prompt_length"][step]].long()
    response = columns["response_ids"][step, : columns["response_length"][step]].long()
    logits = model(input_ids=torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
    table = (logits / TEMPERATURE).log_softmax(-1)
    return table[torch.arange(len(response)), response], -(table.exp() * table).sum(-1)


def reference_update(
    model: PreTrainedModel,
    frozen: PreTrainedModel | None,
    columns: dict[str, Tensor],
    settings: LearnerSettings,
    critic: Critic | None = None,
) -> PreTrainedModel:
    """Return a copy of the model after all optimizer steps of an update, with the last gradients.

    `critic` is updated in place.
    """
    s, policy = settings, copy.deepcopy(model)
    groups = [{"params": list(policy.parameters())}]
    if critic is not None:
        groups.append({"params": list(critic.parameters()), "lr": s.critic_lr or s.lr})
    optimizer = torch.optim.AdamW(groups, lr=s.lr, betas=s.adam_betas, weight_decay=s.weight_decay)
    sequence = row_sequences(columns)
    rng = np.random.default_rng([SEED, 1])
    shuffles = minibatches(sequence, s.minibatch_size, s.num_epochs, rng)
    for steps in shuffles:
        losses = [step_losses(policy, model, frozen, columns, s, int(i)) for i in steps]
        if s.loss_aggregation == "token-mean":
            loss = torch.cat(losses).mean()
        elif s.loss_aggregation == "seq-mean":
            loss = torch.stack([tokens.mean() for tokens in losses]).mean()
        else:
            size = s.micro_batch_steps
            parts = [losses[i : i + size] for i in range(0, len(losses), size)]
            loss = torch.stack([torch.cat(part).mean() for part in parts]).mean()
        if critic is not None:
            parts = [value_loss(policy, critic, columns, s, int(i)) for i in steps]
            loss = loss + s.value_coeff * torch.stack(parts).mean()
        optimizer.zero_grad()
        loss.backward()
        for group in groups:
            torch.nn.utils.clip_grad_norm_(group["params"], s.grad_clip)
        optimizer.step()
    return policy


def step_losses(
    policy: PreTrainedModel,
    sampler: PreTrainedModel,
    frozen: PreTrainedModel | None,
    columns: dict[str, Tensor],
    s: LearnerSettings,
    step: int,
) -> Tensor:
    """Return the losses of one step's tokens, by the formulas of docs/algorithm.md."""
    logp, entropy = logp_and_entropy(policy, columns, step)
    advantage = columns["advantage"][step].double()
    if advantage.ndim:  # one advantage per token
        advantage = advantage[: len(logp)]
    if s.drop_zero_advantage and advantage == 0:
        return 0 * logp
    engine = columns["behavior_logp"][step, : len(logp)].double()
    with torch.no_grad():
        at_sampling = logp_and_entropy(sampler, columns, step)[0]
    old = engine if s.old_logp == "behavior" else at_sampling
    ratio = (logp - old).exp()
    if s.ratio_level != "token":
        whole = ratio.prod() if s.ratio_level == "sequence" else ratio.prod() ** (1 / len(ratio))
        ratio = whole.expand(len(ratio))
    loss = torch.max(-ratio * advantage, -ratio.clip(1 - s.clip_low, 1 + s.clip_high) * advantage)
    if s.dual_clip is not None and advantage < 0:
        loss = torch.min(loss, -s.dual_clip * advantage)
    if s.policy_loss == "cispo":
        weight = ratio.detach().clip(1 - s.clip_low, 1 + s.clip_high)
        loss = -weight * advantage * logp
    sampled = (at_sampling - engine).exp()
    if s.importance_level == "sequence":
        sampled = sampled.prod().expand(len(sampled))
    if s.importance_cap is not None:
        loss = loss * sampled.clip(max=s.importance_cap)
    if s.importance_mask is not None:
        low, high = s.importance_mask
        loss = loss * ((sampled >= low) & (sampled <= high))
    loss = loss - s.entropy_coeff * entropy
    if frozen is not None:
        d = logp_and_entropy(frozen, columns, step)[0].detach() - logp
        kl = {"k1": -d, "k2": d**2 / 2, "k3": d.exp() - d - 1}[s.kl_estimator]
        clamp = s.kl_clamp or float("inf")
        loss = loss + s.kl_coeff * kl.clip(-clamp, clamp)
    return loss


def value_loss(
    policy: PreTrainedModel,
    critic: Critic,
    columns: dict[str, Tensor],
    s: LearnerSettings,
    step: int,
) -> Tensor:
    """Return the value loss of one step, by the formula of docs/algorithm.md."""
    value = value_of(policy, critic, columns, step)
    old, target = columns["value"][step].double(), columns["value_target"][step].double()
    clip = s.value_clip or float("inf")
    clipped = torch.min(torch.max(value, old - clip), old + clip)
    return torch.max((value - target) ** 2, (clipped - target) ** 2) / 2


def update_gradients(path: str, **options: Any) -> tuple[dict[str, Tensor], int]:
    """Return an update's gradients, and the number of elements saved for its backward pass."""
    learner = build_learner(path, **options, mismatch_alarm=None)
    kept: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        update(learner, make_columns(llm_of(learner)))
    named = llm_of(learner).named_parameters()
    return {name: p.grad for name, p in named}, sum(kept)
