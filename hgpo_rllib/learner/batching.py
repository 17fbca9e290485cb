"""Convert responses to token batches: mini-batches of rows, micro-batches within a token budget.

A row is a response. An agent with one role has one response per environment step. In a
conversation, each prompt continues the one before, so several rows share a sequence of tokens: the
prompt and response of the last one. A pass over the sequence computes them all.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hgpo_rllib.rollout.scoring import ScoredTrajectories
from hgpo_rllib.rollout.trajectory import ResponseRow, Trajectory, response_rows
from hgpo_rllib.settings.learner import Aggregation, LearnerSettings

Columns = Mapping[str, Tensor]
TOKEN_COLUMNS = ("behavior_logp", "old_logp", "teacher_logp", "advantage", "weight")
MAX_PADDING = 0.05  # share of padding in all passes of up to `PLANNED_ROWS` rows
PLANNED_ROWS = 512  # rows that are cut at once; time and memory are quadratic in it
VALUE_COLUMNS = ("value", "value_target", "value_weight")


def token_columns(trajectories: Sequence[Trajectory]) -> dict[str, Tensor]:
    """Return the tokens of all responses, one right-padded row per response.

    Columns: ``prompt_ids`` (rows, P), ``prompt_length`` (rows,), ``response_ids`` and
    ``behavior_logp`` (rows, R), ``response_length`` (rows,). If any response has a grammar:
    ``restrictions`` (rows, M, 2), see `GrammarReader.restrictions`, padded with rows of token
    index -1. If any rows share a sequence: ``sequence`` (rows,), its number.
    """
    rows = response_rows(trajectories)
    turns = [row.response for row in rows]
    columns = {
        "prompt_ids": pad_rows([turn.prompt_ids for turn in turns]),
        "response_ids": pad_rows([turn.response_ids for turn in turns]),
        "behavior_logp": pad_rows([turn.behavior_logp for turn in turns]),
        "prompt_length": torch.tensor([len(turn.prompt_ids) for turn in turns]),
        "response_length": torch.tensor([len(turn.response_ids) for turn in turns]),
    }
    if any(turn.restrictions is not None for turn in turns):
        none = np.empty((0, 2), np.int32)
        restrictions = [none if t.restrictions is None else t.restrictions for t in turns]
        columns["restrictions"] = pad_rows(restrictions, -1)
    sequence = find_sequences(rows)
    if sequence[-1] + 1 < len(rows):
        columns["sequence"] = torch.from_numpy(sequence)
    return columns


def teacher_columns(columns: Columns, prompts: list[NDArray[np.int32]]) -> dict[str, Tensor]:
    """Return the token columns with other prompts, one per response; rows share no sequence."""
    kept = ("response_ids", "response_length", "restrictions")
    responses = {key: columns[key] for key in kept if key in columns}
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    return responses | {"prompt_ids": pad_rows(prompts), "prompt_length": lengths}


def find_sequences(rows: Sequence[ResponseRow]) -> NDArray[np.int64]:
    """Number the sequences of rows, and return the number of each row's, shape ``(rows,)``.

    A row continues the sequence of the row before it if its prompt starts with that row's prompt
    and response, and both are of one trajectory.
    """
    continues = np.zeros(len(rows), bool)
    for i, (before, row) in enumerate(itertools.pairwise(rows), start=1):
        whole = np.concatenate([before.response.prompt_ids, before.response.response_ids])
        same = np.array_equal(row.response.prompt_ids[: len(whole)], whole)
        continues[i] = before.trajectory == row.trajectory and same
    return np.cumsum(~continues) - 1


def row_sequences(columns: Columns) -> NDArray[np.int64]:
    """Return the number of each row's sequence, by default one per row, shape ``(rows,)``."""
    if "sequence" in columns:
        return columns["sequence"].numpy()
    return np.arange(len(columns["response_length"]))


def last_rows(
    columns: Columns, rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the last row of each sequence of `rows`, and each row's index into these."""
    if "sequence" not in columns:
        return rows, np.arange(len(rows))
    numbers, sequence = np.unique(row_sequences(columns)[rows], return_inverse=True)
    last = np.zeros(len(numbers), np.int64)
    np.maximum.at(last, sequence, rows)
    return last, sequence


def signal_columns(scored: ScoredTrajectories) -> dict[str, Tensor]:
    """Return the learning signal of each response, in the row order of `token_columns`.

    Columns: ``advantage`` (rows,), or (rows, R) if it is one of tokens. With a critic: ``value``
    and ``value_target``, both (rows,), or (rows, 1 + R) with an estimator of tokens, see
    `value_batch`. If the policy is distilled from a teacher: ``teacher_logp`` (rows, R).
    """
    advantage = scored.token_advantage
    if advantage is None:
        advantage = scored.advantage[[row.step for row in response_rows(scored.trajectories)]]
    arrays = {"advantage": advantage, "teacher_logp": scored.teacher_logp}
    arrays |= {"value": scored.value, "value_target": scored.value_target}
    return {k: torch.from_numpy(a.astype(np.float32)) for k, a in arrays.items() if a is not None}


def pad_rows(rows: list[NDArray], padding: int = 0) -> Tensor:
    """Stack rows of any length in a tensor of shape ``(rows, longest)``, right padded."""
    return pad_sequence([torch.tensor(row) for row in rows], True, padding)


@dataclass(frozen=True)
class MiniBatch:
    """Rows of one optimizer step.

    Attributes:
        rows: all rows of the mini-batch.
        trained: the rows that pass through the model.
        weight: weight of the token losses of each trained row; the objective is the weighted sum
            over all their tokens, shape ``(len(trained),)``.
    """

    rows: NDArray[np.int64]
    trained: NDArray[np.int64]
    weight: NDArray[np.float64]


def plan_update(
    columns: Columns, settings: LearnerSettings, rng: np.random.Generator
) -> list[MiniBatch]:
    """Return the mini-batches of an update, in order.

    Weights are computed over whole mini-batches, including dropped rows.
    """
    lengths = columns["response_length"].numpy()
    kept = np.ones(len(lengths), bool)
    if settings.drop_zero_advantage:
        kept = (columns["advantage"] != 0).reshape(len(lengths), -1).any(1).numpy()
    plan = []
    sequence = row_sequences(columns)
    for rows in minibatches(sequence, settings.minibatch_size, settings.num_epochs, rng):
        part_rows = settings.micro_batch_steps
        weight = token_weights(lengths[rows], settings.loss_aggregation, part_rows)
        plan.append(MiniBatch(rows, rows[kept[rows]], weight[kept[rows]]))
    return plan


def minibatches(
    sequence: NDArray[np.int64], size: int, epochs: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of each optimizer step: every epoch is reshuffled and cut into equal parts.

    The number of parts is the one closest to ``len(sequence) / size``. With a fixed size, a short
    last mini-batch would give its tokens more weight than others have. Rows of one sequence stay
    together, so parts may differ by the length of a sequence.

    Args:
        sequence: number of each row's sequence, ascending.
        size: rows of a mini-batch.
        epochs: number of epochs.
        rng: source of the order.
    """
    rows = len(sequence)
    parts = max(1, round(rows / size))
    equal = np.cumsum([len(part) for part in np.array_split(np.arange(rows), parts)])
    _, row, lengths = np.unique(sequence, return_inverse=True, return_counts=True)
    for _ in range(epochs):
        shuffled = rng.permutation(len(lengths))
        place = np.argsort(shuffled)  # position of each sequence in the new order
        order = np.argsort(place[row], kind="stable")
        ends = np.cumsum(lengths[shuffled])
        cuts = np.unique(ends[np.searchsorted(ends, equal)])
        yield from np.split(order, cuts[:-1])


def token_weights(
    lengths: NDArray[np.int64], aggregation: Aggregation, part_rows: int
) -> NDArray[np.float64]:
    """Return the weight of each row's tokens in the objective of their mini-batch.

    All aggregations are weighted sums of token losses with weights that sum to 1, so the result
    does not depend on how a mini-batch is split into passes through the model.

    Args:
        lengths: number of response tokens of each row, in mini-batch order.
        aggregation: see `LearnerSettings.loss_aggregation`.
        part_rows: rows per part of ``micro-batch-mean``; the last part may have fewer.
    """
    if aggregation == "token-mean":
        part = np.zeros(len(lengths), int)
    elif aggregation == "seq-mean":
        part = np.arange(len(lengths))
    else:
        part = np.arange(len(lengths)) // part_rows
    tokens = np.bincount(part, lengths)
    return 1 / (len(tokens) * np.maximum(tokens, 1)[part])


def micro_batches(
    rows: NDArray[np.int64], lengths: NDArray[np.int64], max_tokens: int
) -> Iterator[NDArray[np.int64]]:
    """Sort rows by length and cut them into as few parts as `MAX_PADDING` allows.

    Each part, padded to its longest row, has at most `max_tokens` tokens. A longer row is a part
    by itself.
    """
    rows = rows[np.argsort(lengths[rows], kind="stable")]
    for some in np.split(rows, range(PLANNED_ROWS, len(rows), PLANNED_ROWS)):
        if len(some):
            yield from np.split(some, fewest_cuts(lengths[some], max_tokens))


def fewest_cuts(lengths: NDArray[np.int64], max_tokens: int) -> list[int]:
    """Return where to cut rows of ascending length into parts; see `micro_batches`.

    Uses dynamic programming over the number of parts: ``padded[end]`` is the minimum number of
    padded tokens of the rows before `end` in that many parts. A part of rows start to end takes
    ``(end - start)`` times the length of its last row.
    """
    start, end = np.ogrid[: len(lengths), 1 : len(lengths) + 1]
    part = (end - start) * lengths
    part = np.where((end - start == 1) | ((end > start) & (part <= max_tokens)), part, np.inf)
    padded = np.append(0.0, np.full(len(lengths), np.inf))
    starts: list[NDArray[np.int64]] = []
    while padded[-1] * (1 - MAX_PADDING) > lengths.sum():
        longer = padded[:-1, None] + part
        starts.append(longer.argmin(axis=0))
        padded = np.append(np.inf, longer.min(axis=0))
    cuts = [len(lengths)]
    for last_start in reversed(starts):
        cuts.append(int(last_start[cuts[-1] - 1]))
    return cuts[-2:0:-1]  # without the two ends


def token_batch(
    columns: Columns, rows: NDArray[np.int64], device: torch.device
) -> dict[str, Tensor]:
    """Build right-padded sequences of tokens and flat arrays over their response tokens.

    Without rows, ``ids`` is one token, so that a pass computes nothing but runs all layers.

    Returns:
        ``ids`` (sequences, L): one sequence per row, except that rows of a conversation share one;
        ``sequence`` and ``position`` (tokens,): index of each response token in ``ids``; ``row``
        and ``offset`` (tokens,): index of it in the response columns; those of ``behavior_logp``,
        ``old_logp``, ``teacher_logp``, ``advantage`` and ``weight`` that `columns` has (tokens,).
        If `columns` has ``restrictions``: ``restricted`` and ``restriction`` (restrictions,): index
        of each restricted token in the flat arrays, and the permitted ``id`` or excluded ``~id``.
        If `columns` has ``value_weight``: the positions of values (see `value_batch`), ``value``,
        ``value_target`` and ``value_weight`` (values,).
    """
    index = torch.from_numpy(rows)
    last, sequences = (torch.from_numpy(numbers) for numbers in last_rows(columns, rows))
    prompt_length, response_length = (
        columns[key][index] for key in ("prompt_length", "response_length")
    )
    length = columns["prompt_length"][last] + columns["response_length"][last]
    width = max(length.tolist(), default=1)
    ids = torch.zeros(max(1, len(last)), width, dtype=torch.long)
    prompts = columns["prompt_ids"][last, :width].long()
    ids[: len(last), : prompts.shape[1]] = prompts
    response_index = torch.arange(columns["response_ids"].shape[1])
    flat, offset = (response_index[None] < response_length[:, None]).nonzero(as_tuple=True)
    row, sequence = index[flat], sequences[flat]
    position = prompt_length[flat] + offset
    ids[sequence, position] = columns["response_ids"][row, offset].long()
    batch = {"ids": ids, "sequence": sequence, "position": position, "row": row, "offset": offset}
    for name in TOKEN_COLUMNS:
        if name in columns:
            values = columns[name]  # of tokens, or of rows
            batch[name] = values[row, offset] if values.ndim == 2 else values[row]
    if "restrictions" in columns:
        restrictions = columns["restrictions"][index]
        restricted, entry = (restrictions[..., 0] >= 0).nonzero(as_tuple=True)
        token, code = restrictions[restricted, entry].long().unbind(1)
        first = response_length.cumsum(0) - response_length
        batch |= {"restricted": first[restricted] + token, "restriction": code}
    if "value_weight" in columns:
        positions = value_positions(columns, rows, sequences, columns["value"].ndim == 2)
        at = positions["value_row"], positions["value_column"]
        values = {k: columns[k].view(len(columns[k]), -1)[at] for k in VALUE_COLUMNS}
        trained = values["value_weight"] != 0
        batch |= {k: column[trained] for k, column in (positions | values).items()}
    return {key: value.to(device) for key, value in batch.items()}


def value_batch(
    columns: Columns, rows: NDArray[np.int64], device: torch.device, per_token: bool
) -> dict[str, Tensor]:
    """Build right-padded sequences up to the last value, and the positions of values.

    Without rows, there are no values, and ``ids`` is that of `token_batch`.

    Returns:
        ``ids`` (sequences, L); ``value_row`` and ``value_column`` (values,): index of each value
        in the value columns, whose column 0 is the value of a turn and column 1 + j that before
        response token j; ``value_sequence`` and ``value_position`` (values,): index in ``ids`` of
        the token at which it is computed, the last one of the prompt for columns 0 and 1.
    """
    sequences = torch.from_numpy(last_rows(columns, rows)[1])
    batch = value_positions(columns, rows, sequences, per_token)
    width = 1 + max(batch["value_position"].tolist(), default=0)
    batch["ids"] = token_batch(columns, rows, device)["ids"][:, :width]
    return {key: value.to(device) for key, value in batch.items()}


def value_positions(
    columns: Columns, rows: NDArray[np.int64], sequences: Tensor, per_token: bool
) -> dict[str, Tensor]:
    """Return ``value_row``, ``value_column``, ``value_sequence`` and ``value_position``.

    See `value_batch`. `sequences` is the row of ``ids`` of each of `rows`.
    """
    index = torch.from_numpy(rows)
    tokens = columns["response_length"][index] * per_token
    column = torch.arange(1 + max(tokens.tolist(), default=0))
    row, column = (column <= tokens[:, None]).nonzero(as_tuple=True)
    position = columns["prompt_length"][index[row]] - 1 + (column - 1).clamp(min=0)
    return {
        "value_row": index[row],
        "value_column": column,
        "value_sequence": sequences[row],
        "value_position": position,
    }
