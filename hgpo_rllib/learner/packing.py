"""Passes without padding on GPUs: the rows of a batch become one sequence.

Each row attends to itself through torch's `varlen_attn`, the only kernel for it among the installed
packages that neither computes nor stores a mask over all pairs of tokens. It exists for bfloat16 on
GPUs, and `learner.unpadded_attention` enables it. Other passes stay padded.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "hgpo_packed"  # of the attention function in transformers


def hidden_states(llm: PreTrainedModel, ids: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the hidden states of the last layer, shape ``(rows, L, width)``.

    Args:
        llm: a causal language model, or its decoder.
        ids: right-padded rows; packed if `enable` was called and the device has the kernel.
        lengths: number of tokens of each row, shape ``(rows,)``; None if unknown. Hidden states of
            padding have no meaning. It may have no element although ``ids`` has a row: the pass of
            a learner that only takes part in layer gathers.
    """
    trunk = llm.base_model
    if (
        lengths is None
        or len(lengths) < len(ids)
        or trunk.config._attn_implementation != NAME
        or not has_kernel(ids.device)
    ):
        return trunk(input_ids=ids, use_cache=False).last_hidden_state
    columns = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    filled = columns < lengths[:, None]
    packed = trunk(
        input_ids=ids[filled][None],
        position_ids=columns[filled][None],
        use_cache=False,
        cu_seq_lens_q=nn.functional.pad(lengths.cumsum(0), (1, 0)).int(),
        max_length_q=ids.shape[1],
    ).last_hidden_state[0]
    hidden = packed.new_zeros(*ids.shape, packed.shape[-1])
    hidden[filled] = packed
    return hidden


def has_kernel(device: torch.device) -> bool:
    """Return whether `varlen_attn` supports this pass: in bfloat16, on an Ampere GPU or later."""
    return (
        device.type == "cuda"
        and torch.is_autocast_enabled("cuda")
        and torch.get_autocast_dtype("cuda") == torch.bfloat16
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def enable(llm: PreTrainedModel) -> None:
    """Let a model use `packed_attention`, unless this differs from its own attention."""
    trunk = llm.base_model
    if trunk.config._attn_implementation == "sdpa" and _is_plain(trunk.config):
        trunk.set_attn_implementation(NAME)  # a model without transformers' interface stays


def _is_plain(config: PreTrainedConfig) -> bool:
    """Return whether all layers attend to all earlier tokens, with heads that the kernel has."""
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = getattr(config, "sliding_window", None) is not None
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dropout = getattr(config, "attention_dropout", 0.0)
    fits = width % 8 == 0 and width <= 256
    return layers == {"full_attention"} and not windowed and not dropout and fits


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention within each row of a packed batch; of a padded batch, as ``sdpa`` does.

    For the arguments see transformers' `AttentionInterface`; of a packed batch, tensors have the
    shape ``(1, heads, tokens, width)``.
    """
    if cu_seq_lens_q is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    # Rotary embeddings are float32 under autocast, which does not know this kernel.
    parts = (part[0].transpose(0, 1).to(value.dtype) for part in (query, key, value))
    ends = (cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q)
    out = varlen_attn(*parts, *ends, scale=scaling, window_size=(-1, 0), enable_gqa=True)
    return out[None], None


AttentionInterface.register(NAME, packed_attention)
