"""Responses to token batches: mini-batches of rows, micro-batches under a token budget.

A row is a response. An agent with one role has one a step of its environment.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hgpo_rllib.agent import Span
from hgpo_rllib.rollout.scoring import ScoredTrajectories
from hgpo_rllib.rollout.trajectory import Trajectory, response_rows
from hgpo_rllib.settings.learner import Aggregation, LearnerSettings

logger = logging.getLogger(__name__)
Columns = Mapping[str, Tensor]
TOKEN_COLUMNS = ("behaviour_logp", "old_logp")
MAX_PADDING = 0.05  # of a mini-batch's passes together
PLANNED_ROWS = 512  # that are cut at a time; time and memory grow with the square
STEP_COLUMNS = ("advantage", "weight")
VALUE_COLUMNS = ("value", "value_target", "value_weight")


def token_columns(trajectories: Sequence[Trajectory]) -> dict[str, Tensor]:
    """One row a response, right padded: whose it is, what was read and drawn.

    ``trajectory``, ``turn`` (index of the step in it) and ``role`` (roles are numbered in the order
    of their names), all (rows,); ``prompt_ids`` (rows, P), ``prompt_length`` (rows,),
    ``response_ids`` and ``behaviour_logp`` (rows, R), ``response_length`` (rows,).
    """
    rows = response_rows(trajectories)
    turns = [row.response for row in rows]
    return {
        "trajectory": torch.tensor([row.trajectory for row in rows]),
        "turn": torch.tensor([row.turn for row in rows]),
        "role": torch.from_numpy(np.unique([t.role for t in turns], return_inverse=True)[1]),
        "prompt_ids": pad_rows([turn.prompt_ids for turn in turns]),
        "response_ids": pad_rows([turn.response_ids for turn in turns]),
        "behaviour_logp": pad_rows([turn.behaviour_logp for turn in turns]),
        "prompt_length": torch.tensor([len(turn.prompt_ids) for turn in turns]),
        "response_length": torch.tensor([len(turn.response_ids) for turn in turns]),
    }


def signal_columns(scored: ScoredTrajectories) -> dict[str, Tensor]:
    """What is to be learned from each response, the rows in the same order.

    ``advantage`` (rows,). Where a response has spans, it is (rows, S), with ``span_start`` and
    ``span_end``; rows with fewer have empty ones. Of scores with a critic's values also these,
    ``value``, and ``value_target``, both (rows,).
    """
    rows = response_rows(scored.trajectories)
    turns, step = [row.response for row in rows], np.array([row.step for row in rows])
    spans = [turn.spans or (Span(0, len(turn.response_ids), turn.role),) for turn in turns]
    count, flat = [len(of_row) for of_row in spans], [span for of_row in spans for span in of_row]
    step_of_span = np.repeat(step, count)
    advantage = scored.advantage[step_of_span]
    for role, of_role in scored.role_advantages.items():
        mine = np.array([span.role == role for span in flat])
        if not mine.any():
            logger.warning("algorithm.role_estimators: no response has the role %r", role)
        advantage[mine] = of_role[step_of_span[mine]]
    columns = {"advantage": torch.from_numpy(advantage.astype(np.float32))}
    if any(turn.spans for turn in turns):
        columns["span_start"] = torch.tensor([span.start for span in flat])
        columns["span_end"] = torch.tensor([span.end for span in flat])
        for key, column in columns.items():
            columns[key] = pad_rows([part.numpy() for part in column.split(count)])
    if scored.value is not None and scored.value_target is not None:
        values = {"value": scored.value, "value_target": scored.value_target[step]}
        columns |= {k: torch.from_numpy(value.astype(np.float32)) for k, value in values.items()}
    return columns


def pad_rows(rows: list[NDArray]) -> Tensor:
    """Rows of any length as one tensor, filled up with zeros."""
    padded = np.zeros((len(rows), max(map(len, rows), default=0)), rows[0].dtype)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return torch.from_numpy(padded)


@dataclass(frozen=True)
class MiniBatch:
    """The steps of one optimiser step.

    Attributes:
        steps: rows of all of them.
        rows: rows of those that pass through the model.
        weight: of each token's loss in the sum over ``rows`` that is the objective,
            shape ``(len(rows),)``.
    """

    steps: NDArray[np.int64]
    rows: NDArray[np.int64]
    weight: NDArray[np.float64]


def plan_update(
    columns: Columns, settings: LearnerSettings, rng: np.random.Generator
) -> list[MiniBatch]:
    """The mini-batches of an update, one after the other.

    Weights are those of whole mini-batches: steps that are dropped count in them.
    """
    lengths = columns["response_length"].numpy()
    kept = np.ones(len(lengths), bool)
    if settings.drop_zero_advantage:
        kept = (columns["advantage"] != 0).reshape(len(lengths), -1).any(1).numpy()
    plan = []
    for steps in minibatches(len(lengths), settings.minibatch_size, settings.num_epochs, rng):
        weight = token_weights(
            lengths[steps], settings.loss_aggregation, settings.micro_batch_steps
        )
        plan.append(MiniBatch(steps, steps[kept[steps]], weight[kept[steps]]))
    return plan


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


def token_weights(
    lengths: NDArray[np.int64], aggregation: Aggregation, part_steps: int
) -> NDArray[np.float64]:
    """Weight that the tokens of each step have in the objective of their mini-batch.

    All aggregations are sums of token losses with weights that add up to 1, so that it does not
    matter how a mini-batch is cut into passes through the model.

    Args:
        lengths: response tokens of each step of the mini-batch, in its order.
        aggregation: see `LearnerSettings.loss_aggregation`.
        part_steps: steps of the parts of ``micro-batch-mean``; the last part may have fewer.
    """
    if aggregation == "token-mean":
        part = np.zeros(len(lengths), int)
    elif aggregation == "seq-mean":
        part = np.arange(len(lengths))
    else:
        part = np.arange(len(lengths)) // part_steps
    tokens = np.bincount(part, lengths)
    return 1 / (len(tokens) * np.maximum(tokens, 1)[part])


def micro_batches(
    rows: NDArray[np.int64], lengths: NDArray[np.int64], max_tokens: int
) -> Iterator[NDArray[np.int64]]:
    """Sort rows by length and cut them into as few parts as `MAX_PADDING` allows.

    Each part, padded to its longest row, fits the budget; a row longer than the budget gets a part
    of its own.
    """
    rows = rows[np.argsort(lengths[rows], kind="stable")]
    for some in np.split(rows, range(PLANNED_ROWS, len(rows), PLANNED_ROWS)):
        if len(some):
            yield from np.split(some, fewest_cuts(lengths[some], max_tokens))


def fewest_cuts(lengths: NDArray[np.int64], max_tokens: int) -> list[int]:
    """Where to cut rows of ascending length into parts; see `micro_batches`.

    By dynamic programming over their number: ``padded[end]`` is the least that the rows before
    `end` take in so many parts, and a part of rows start to end takes ``(end - start)`` times the
    length of its last.
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
    """Right-padded ``prompt + response`` rows and flat arrays over their response tokens.

    Returns:
        ``ids`` (rows, L); ``row`` and ``position`` (tokens,): where in ``ids`` each response token
        stands; ``step`` and ``offset`` (tokens,): where it stands in the columns of responses; and
        what the columns have of ``behaviour_logp``, ``old_logp``, ``advantage`` and ``weight``
        (tokens,). Where the columns have a ``value_weight``: `prompt_batch`'s ``last_prompt`` and
        ``value``, ``value_target`` and ``value_weight`` (rows,).
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
    step = index[row]
    position = prompt_length[row] + offset
    ids[row, position] = columns["response_ids"][step, offset].long()
    of_tokens = {k: columns[k][step, offset] for k in TOKEN_COLUMNS if k in columns}
    of_steps = {k: columns[k][step] for k in STEP_COLUMNS if k in columns}
    if "span_start" in columns:
        begun, over = (columns[k][step] <= offset[:, None] for k in ("span_start", "span_end"))
        of_steps["advantage"] = (of_steps["advantage"] * (begun & ~over)).sum(1)
    batch = {"ids": ids, "row": row, "position": position, "step": step, "offset": offset}
    batch |= of_tokens | of_steps
    if "value_weight" in columns:
        batch |= {k: columns[k][index] for k in VALUE_COLUMNS} | {"last_prompt": prompt_length - 1}
    return {key: value.to(device) for key, value in batch.items()}


def prompt_batch(
    columns: Columns, rows: NDArray[np.int64], device: torch.device
) -> dict[str, Tensor]:
    """Right-padded prompts alone.

    Returns:
        ``ids`` (rows, L); ``last_prompt`` (rows,): where in ``ids`` each prompt ends.
    """
    index = torch.from_numpy(rows)
    last = columns["prompt_length"][index] - 1
    ids = columns["prompt_ids"][index, : int(last.max()) + 1].long()
    return {"ids": ids.to(device), "last_prompt": last.to(device)}


def empty_batch(tokens: dict[str, Tensor]) -> dict[str, Tensor]:
    """A token batch like `tokens` without tokens that count: a pass that changes nothing."""
    return {k: v[:1, :1] if k == "ids" else v[:0] for k, v in tokens.items()}
