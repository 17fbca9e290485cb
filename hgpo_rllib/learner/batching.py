"""Steps to token batches: mini-batches of steps, micro-batches under a token budget."""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hgpo_rllib.rollout.trajectories import ScoredTrajectories

Columns = Mapping[str, Tensor]


def step_columns(scored: ScoredTrajectories) -> dict[str, Tensor]:
    """One row a step, right padded.

    ``prompt_ids`` (steps, P), ``prompt_length`` (steps,), ``response_ids`` and ``behaviour_logp``
    (steps, R), ``response_length`` (steps,), ``advantage`` (steps,).
    """
    outputs: dict[str, list[NDArray]] = {
        key: [row for member in scored.members for row in member.get_extra_model_outputs(key)]
        for key in ("prompt_ids", "response_ids", "behaviour_logp")
    }
    lengths = {key: [len(row) for row in rows] for key, rows in outputs.items()}
    return {
        **{key: _pad(rows) for key, rows in outputs.items()},
        "prompt_length": torch.tensor(lengths["prompt_ids"]),
        "response_length": torch.tensor(lengths["response_ids"]),
        "advantage": torch.from_numpy(scored.advantage.astype(np.float32)),
    }


def _pad(rows: list[NDArray]) -> Tensor:
    padded = np.zeros((len(rows), max(map(len, rows), default=0)), rows[0].dtype)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return torch.from_numpy(padded)


def minibatches(
    steps: int, size: int, epochs: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Rows of each optimiser step: every epoch a fresh shuffle, cut into nearly equal parts.

    Parts are as close to `size` as an even cut allows: a short last mini-batch would give its
    tokens more weight than others have.
    """
    parts = max(1, round(steps / size))
    for _ in range(epochs):
        yield from np.array_split(rng.permutation(steps), parts)


def micro_batches(
    rows: NDArray[np.int64], lengths: NDArray[np.int64], max_tokens: int
) -> Iterator[NDArray[np.int64]]:
    """Cut rows, sorted by length, so that each part padded to its longest row fits the budget.

    A row longer than the budget gets a part of its own.
    """
    rows = rows[np.argsort(lengths[rows], kind="stable")]
    start = 0
    for end in range(1, len(rows) + 1):
        full = end == len(rows)
        if full or (end + 1 - start) * lengths[rows[end]] > max_tokens:
            yield rows[start:end]
            start = end


def token_batch(
    columns: Columns, rows: NDArray[np.int64], device: torch.device
) -> dict[str, Tensor]:
    """Right-padded ``prompt + response`` rows and flat arrays over their response tokens.

    Returns:
        ``ids`` (rows, L); ``row`` and ``position`` (tokens,): where in ``ids`` each response token
        stands; ``behaviour_logp`` and ``advantage`` (tokens,).
    """
    index = torch.from_numpy(rows)
    prompt_length, response_length = (
        columns[key][index] for key in ("prompt_length", "response_length")
    )
    width = int((prompt_length + response_length).max())
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    ids[:, : columns["prompt_ids"].shape[1]] = columns["prompt_ids"][index, :width].long()
    response_index = torch.arange(columns["response_ids"].shape[1])
    row, offset = (response_index[None] < response_length[:, None]).nonzero(as_tuple=True)
    position = prompt_length[row] + offset
    ids[row, position] = columns["response_ids"][index[row], offset].long()
    batch = {
        "ids": ids,
        "row": row,
        "position": position,
        "behaviour_logp": columns["behaviour_logp"][index[row], offset],
        "advantage": columns["advantage"][index[row]],
    }
    return {key: value.to(device) for key, value in batch.items()}
