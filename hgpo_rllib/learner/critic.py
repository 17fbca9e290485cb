"""PPO's critic and its loss.

The value of a step is the expected return from the step on, given its prompt. It is computed at
the prompt's last token.
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
from hgpo_rllib.learner.packing import hidden_states
from hgpo_rllib.models import load_model
from hgpo_rllib.settings.learner import CriticKind, LearnerSettings


class Critic(nn.Module):
    """Linear head on the hidden states of a separate trunk or of the policy.

    Initial values are 0, so advantages of the first iteration are computed from returns only.
    """

    def __init__(self, hidden_size: int, trunk: PreTrainedModel | None):
        """`trunk`: a decoder without output head; None to use the policy's hidden states."""
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Mapping[str, Tensor], hidden: Tensor | None) -> Tensor:
        """Return the values of a batch, shape ``(rows,)``, float32 or wider.

        Attention is causal, so tokens after a prompt do not affect its value.

        Args:
            batch: ``ids``, ``length``, ``prompt_row`` and ``last_prompt``, see
                `hgpo_rllib.learner.batching.prompt_batch`.
            hidden: the policy's hidden states of ``ids``; ignored by a critic with a trunk.
        """
        last = batch["last_prompt"]
        if self.trunk is not None:
            ids = batch["ids"][:, : max(last.tolist(), default=0) + 1]
            hidden = hidden_states(self.trunk, ids, batch["length"].clamp(max=ids.shape[1]))
        assert hidden is not None, "a critic without trunk reads the policy's hidden states"
        value = self.head(hidden[batch["prompt_row"], last])[:, 0]
        return value.to(torch.promote_types(value.dtype, torch.float32))


def make_critic(kind: CriticKind, policy: PreTrainedModel, model_path: str) -> Critic | None:
    """Create the critic of a policy loaded from `model_path`; return None for kind ``none``.

    The trunk of a ``separate`` critic is a copy of the starting policy's.
    """
    if kind == "none":
        return None
    trunk = load_model(model_path).base_model if kind == "separate" else None
    return Critic(policy.config.hidden_size, trunk)


def parameter_groups(module: nn.Module) -> list[list[nn.Parameter]]:
    """Return the trained parameters of the policy, and those of the critic if there is one.

    Each list has its own learning rate and gradient clipping, because the scale of returns, and
    hence of the critic's gradients, is arbitrary.
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
    """Compute the values of the steps in these rows, without gradient, shape ``(len(rows),)``.

    Collective: all learners must call this together. They divide the rows among themselves.
    `columns`: see `hgpo_rllib.learner.batching.token_columns`.
    """
    values = torch.full((len(columns["prompt_length"]),), torch.nan, dtype=torch.float64)
    lengths = columns["prompt_length"].numpy()
    with torch.no_grad():
        for part in passes(columns, rows, lengths, settings.micro_batch_tokens):
            if len(part):
                got = module.compute_values(prompt_batch(columns, part, device))
                values[torch.from_numpy(part)] = got.double().cpu()
            elif settings.shard_parameters:  # take part in the layer gathers of the others
                module.compute_values(prompt_batch(columns, rows[:1], device))
    return join(values, device).numpy()[rows]


def value_losses(
    value: Tensor, old_value: Tensor, target: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """Compute PPO's value loss of each step, ``max((v - target)², (clipped v - target)²) / 2``.

    The clipped v is within ``old_value ± clip``; without `clip`, the loss has only the first term.
    All arrays have shape ``(steps,)``.

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
