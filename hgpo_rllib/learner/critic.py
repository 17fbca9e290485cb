"""PPO's critic and its loss.

The value of a turn is the expected return from its step on, given its prompt. It is computed at the
prompt's last token. Estimators with advantages of tokens also read a value before each response
token.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import Tensor, nn
from transformers import PreTrainedModel

from hgpo_rllib.learner.batching import Columns, value_batch
from hgpo_rllib.learner.data_parallel import local_micro_batches, merge_across_learners
from hgpo_rllib.models import load_model
from hgpo_rllib.settings.learner import CriticKind, LearnerSettings


class Critic(nn.Module):
    """Linear head on the hidden states of a separate trunk or of the policy.

    Initial values are 0, so advantages of the first iteration are computed from returns only.
    """

    def __init__(self, hidden_size: int, trunk: PreTrainedModel | None, outputs: int):
        """Create the head.

        Args:
            hidden_size: width of the hidden states.
            trunk: a decoder without output head; None to use the policy's hidden states.
            outputs: 1; 2 if tokens have a value function of their own (`vetta`); 3 for V_high,
                V_switch and V_low of `hiper`, in this order.
        """
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(hidden_size, outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Mapping[str, Tensor], hidden: Tensor | None) -> Tensor:
        """Return the values of a batch, shape ``(values,)``, in the type of the head.

        Attention is causal, so tokens after a position do not affect its value.

        Args:
            batch: ``ids``, ``value_sequence``, ``value_position`` and ``value_column``, see
                `hgpo_rllib.learner.batching.value_batch`.
            hidden: the policy's hidden states of ``ids``; ignored by a critic with a trunk.
        """
        position = batch["value_position"]
        if self.trunk is not None:
            ids = batch["ids"][:, : max(position.tolist(), default=0) + 1]
            hidden = hidden_states(self.trunk, ids)
        assert hidden is not None, "a critic without trunk reads the policy's hidden states"
        states = hidden[batch["value_sequence"], position].to(self.head.weight.dtype)
        with torch.autocast(states.device.type, enabled=False):  # bfloat16 would round the values
            outputs = self.head(states)
        column = batch["value_column"].clamp(max=outputs.shape[1] - 1)
        return outputs.gather(1, column[:, None])[:, 0]


def hidden_states(llm: PreTrainedModel, ids: Tensor) -> Tensor:
    """Return the hidden states of the last layer, shape ``(rows, L, width)``.

    Rows are right padded and attention is causal, so no mask is needed; those of padding have no
    meaning.

    Args:
        llm: a causal language model, or its decoder.
        ids: shape ``(rows, L)``.
    """
    return llm.base_model(input_ids=ids, use_cache=False).last_hidden_state


def make_critic(
    kind: CriticKind, policy: PreTrainedModel, model_path: str, layers: int | None, outputs: int
) -> Critic | None:
    """Create the critic of a policy loaded from `model_path`; return None for kind ``none``.

    The trunk of a ``separate`` critic is a copy of the starting policy's: embedding, the first
    `layers` layers (None: all) and final norm.
    """
    if kind == "none":
        return None
    trunk = load_model(model_path).base_model if kind == "separate" else None
    if trunk is not None and layers is not None:
        trunk.layers = trunk.layers[:layers]
        trunk.config.num_hidden_layers = len(trunk.layers)
    return Critic(policy.config.hidden_size, trunk, outputs)


def parameter_groups(module: nn.Module) -> list[list[nn.Parameter]]:
    """Return the trained parameters of the policy, and those of the critic if there is one.

    Each list has its own learning rate and gradient clipping, because the scale of returns, and
    hence of the critic's gradients, is arbitrary.
    """
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    policy = [p for name, p in trained if "critic." not in name]
    critic = [p for name, p in trained if "critic." in name]
    return [policy, critic] if critic else [policy]


@torch.no_grad()
def response_values(
    module: TorchRLModule,
    columns: Columns,
    settings: LearnerSettings,
    device: torch.device,
    per_token: bool,
) -> NDArray[np.float64]:
    """Compute the values of all responses, without gradient.

    Collective: all learners must call this together. They divide the rows among themselves.
    `columns`: see `hgpo_rllib.learner.batching.token_columns`.

    Returns:
        Values of turns, shape ``(rows,)``. With `per_token`, shape ``(rows, 1 + R)``: in column 0
        the value of the turn, in column 1 + j that before response token j, NaN after the response.
    """
    lengths, shape = columns["prompt_length"].numpy(), (len(columns["prompt_length"]), 1)
    if per_token:
        lengths = lengths + columns["response_length"].numpy()
        shape = (len(lengths), 1 + columns["response_ids"].shape[1])
    values, rows = torch.full(shape, torch.nan, dtype=torch.float64), np.arange(len(lengths))
    for part in local_micro_batches(columns, rows, lengths, settings):
        # A part without rows runs all layers too: it takes part in the layer gathers of the others.
        batch = value_batch(columns, part, device, per_token)
        row, column = batch["value_row"].cpu(), batch["value_column"].cpu()
        values[row, column] = module.forward_train(batch)["value"].double().cpu()
    joined = merge_across_learners(values, device).numpy()
    return joined if per_token else joined[:, 0]


def value_weights(columns: Columns, rows: NDArray[np.int64], outputs: int) -> Tensor:
    """Return the weight of each value's loss in a mini-batch of these rows, shape of ``value``.

    Losses are averaged over turns and over tokens. With one output per token, the value of a turn
    is that before its first token, so only losses of tokens are averaged. With three outputs,
    each is averaged over the values that have a target.
    """
    weight = torch.full(columns["value"].shape, 1 / len(rows), dtype=torch.float64)
    if weight.ndim == 2:
        tokens = int(columns["response_length"][torch.from_numpy(rows)].sum())
        weight[:, 1:] = 1 / max(tokens, 1)
        if outputs == 1:
            weight[:, 0] = 0
        if outputs == 3:
            known = ~columns["value_target"].isnan()
            mine = known[torch.from_numpy(rows)]
            for part in (slice(0, 1), slice(1, 2), slice(2, None)):
                weight[:, part] = known[:, part] / max(int(mine[:, part].sum()), 1)
    return weight


def value_losses(
    value: Tensor, old_value: Tensor, target: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """Compute PPO's value loss of each value, ``max((v - target)², (clipped v - target)²) / 2``.

    The clipped v is within ``old_value ± clip``; without `clip`, the loss has only the first term.
    All arrays have shape ``(values,)``.

    Returns:
        Loss of each value, and whether clipping removed its gradient.
    """
    loss = (value - target).square()
    if clip is None:
        return loss / 2, torch.zeros_like(loss, dtype=torch.bool)
    change = value - old_value
    clipped = (old_value + change.clamp(-clip, clip) - target).square()
    cut = (change.abs() > clip) & (clipped > loss)
    return torch.where(cut, clipped, loss) / 2, cut
