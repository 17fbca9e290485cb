"""PPO's critic: one value a step, at the last token of its prompt; its loss and how good it is.

The value of a step is the return to be expected from there on, by what its prompt says.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from torch import Tensor, nn
from transformers import PreTrainedModel

from hgpo_rllib.learner.batching import Columns, prompt_batch
from hgpo_rllib.learner.distribution import join, passes
from hgpo_rllib.learner.statistics import Statistics
from hgpo_rllib.models import load_model
from hgpo_rllib.settings.learner import CriticKind, LearnerSettings


class Critic(nn.Module):
    """A linear head on hidden states: of a trunk of its own, or of the policy's.

    It begins as the value 0 everywhere: the first iteration's advantages are returns.
    """

    def __init__(self, hidden_size: int, trunk: PreTrainedModel | None):
        """`trunk`: a decoder without output head; None: the policy's serves."""
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Mapping[str, Tensor], hidden: Tensor | None) -> Tensor:
        """Values of the rows of a batch, shape ``(rows,)``, float32 or wider.

        Attention is causal, so what a row has of its response does not matter.

        Args:
            batch: ``ids`` and ``last_prompt``, see `hgpo_rllib.learner.batching.prompt_batch`.
            hidden: the policy's hidden states of ``ids``; not read by a critic with a trunk.
        """
        last = batch["last_prompt"]
        if self.trunk is not None:
            ids = batch["ids"][:, : max(last.tolist(), default=0) + 1]
            hidden = self.trunk(input_ids=ids, use_cache=False).last_hidden_state
        assert hidden is not None, "a critic without trunk reads the policy's hidden states"
        value = self.head(hidden[torch.arange(len(last), device=last.device), last])[:, 0]
        return value.to(torch.promote_types(value.dtype, torch.float32))


def make_critic(kind: CriticKind, policy: PreTrainedModel, model_path: str) -> Critic | None:
    """The critic of that kind for a policy that was loaded from `model_path`; None: there is none.

    A separate critic's trunk is the starting policy's.
    """
    if kind == "none":
        return None
    trunk = load_model(model_path).base_model if kind == "separate" else None
    return Critic(policy.config.hidden_size, trunk)


def parameter_groups(module: nn.Module) -> list[list[nn.Parameter]]:
    """Parameters of the policy that are trained, and those of the critic alone, if there is one.

    Each list has a learning rate and a bound on its gradient's norm: returns, and with them the
    gradients of a critic, can be of any size.
    """
    critic = {id(p) for name, p in module.named_parameters() if "critic." in name}
    trained = [p for p in module.parameters() if p.requires_grad]
    of_policy = [p for p in trained if id(p) not in critic]
    of_critic = [p for p in trained if id(p) in critic]
    return [of_policy, of_critic] if of_critic else [of_policy]


def step_values(
    module: ValueFunctionAPI,
    columns: Columns,
    rows: NDArray[np.int64],
    settings: LearnerSettings,
    device: torch.device,
) -> NDArray[np.float64]:
    """Values of the steps in these rows, without gradient, shape ``(len(rows),)``.

    Several learners call this together and share the rows out.

    Args:
        module: gives the values of a batch of prompts.
        columns: see `hgpo_rllib.learner.batching.token_columns`.
        rows: of which steps.
        settings: padded tokens of prompts in one pass, and whether parameters are sharded.
        device: where the module is.
    """
    values = torch.full((len(columns["prompt_length"]),), torch.nan, dtype=torch.float64)
    lengths = columns["prompt_length"].numpy()
    with torch.no_grad():
        for part in passes(rows, lengths, settings.micro_batch_tokens):
            if len(part):
                got = module.compute_values(prompt_batch(columns, part, device))
                values[torch.from_numpy(part)] = got.double().cpu()
            elif settings.shard_parameters:  # the others gather layers for theirs
                module.compute_values(prompt_batch(columns, rows[:1], device))
    return join(values, device).numpy()[rows]


def value_losses(
    value: Tensor, old_value: Tensor, target: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """PPO's value loss of each step, ``max((v - target)², (clipped v - target)²) / 2``.

    Args:
        value: what the critic says, shape ``(steps,)``.
        old_value: what it said before the update.
        target: what it is to say.
        clip: v is clipped to ``old_value ± clip``; None: it is not.

    Returns:
        Loss of each step, and whether clipping removed its gradient.
    """
    loss = (value - target).square()
    if clip is None:
        return loss / 2, torch.zeros_like(loss, dtype=torch.bool)
    change = value - old_value
    clipped = (old_value + change.clamp(-clip, clip) - target).square()
    cut = (change.abs() > clip) & (clipped > loss)
    return torch.where(cut, clipped, loss) / 2, cut


def value_loss_part(
    settings: LearnerSettings, value: Tensor, batch: Mapping[str, Tensor], statistics: Statistics
) -> Tensor:
    """A micro-batch's part of the value term of the objective; its numbers go to `statistics`.

    Args:
        settings: of clip and coefficient.
        value: of the micro-batch's rows, with gradient.
        batch: ``value``, ``value_target`` and ``value_weight`` of the same rows.
        statistics: of the mini-batch.
    """
    losses, cut = value_losses(value, batch["value"], batch["value_target"], settings.value_clip)
    loss = (losses * batch["value_weight"].to(losses.dtype)).sum()
    statistics.add("value_clip_fraction", cut)
    statistics.add("value_loss", loss)
    return settings.value_coeff * loss
