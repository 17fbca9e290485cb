"""The steps that `hgpo bench credit` compares: a sample, their estimates and agent states."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.advantages.estimators import ESTIMATORS, NEEDS_CRITIC
from hgpo_rllib.advantages.groups import group_advantage, history_ids
from hgpo_rllib.agent import Turn
from hgpo_rllib.bench.branching import AgentState
from hgpo_rllib.config import AlgorithmSettings
from hgpo_rllib.rollout.scoring import score
from hgpo_rllib.rollout.trajectory import Trajectory

DIGITS = 5  # of recorded advantages
Record = dict[str, Any]


def sample_rows(steps: int, count: int, seed: int) -> NDArray[np.intp]:
    """Draw `count` of the steps of a batch, each with the same probability, without replacement.

    With fewer steps than `count`, all are returned.

    Returns:
        Row numbers, ascending.
    """
    drawn = np.random.default_rng(seed).choice(steps, min(count, steps), replace=False)
    return np.sort(drawn)


def sampled_columns(
    played: list[Trajectory], settings: AlgorithmSettings, rows: NDArray[np.intp]
) -> Record:
    """Return the columns of some steps: where they are, and their advantages by every estimator.

    All steps of `played` are scored together, as one batch.
    """
    scored = score(played, settings)
    steps, of_estimators = scored.steps, settings.estimator_settings()
    estimates = {
        name: function(steps, of_estimators)
        for name, function in ESTIMATORS.items()
        if name not in NEEDS_CRITIC
    }
    levels = {f"k = {k}": (level.advantage, level.size) for k, level in enumerate(scored.levels)}
    levels["oracle"] = group_advantage(history_ids(steps), steps.step_return, settings.normalize)
    member = np.repeat([t.member for t in played], [len(t) for t in played])
    return {
        "group": steps.task[rows].tolist(),
        "member": member[rows].tolist(),
        "time": steps.time[rows].tolist(),
        "estimates": {name: rounded(values[rows]) for name, values in estimates.items()},
        "levels": {name: rounded(values[rows]) for name, (values, _) in levels.items()},
        "sizes": {name: sizes[rows].tolist() for name, (_, sizes) in levels.items()},
    }


def rounded(values: NDArray[np.float64]) -> list[float]:
    """Round to `DIGITS` significant digits."""
    return [float(f"{value:.{DIGITS}g}") for value in values]


def agent_states(
    played: Sequence[Trajectory], tasks: Sequence[int], rows: NDArray[np.intp]
) -> list[Record]:
    """Return the agent states of some steps, in order of their first step.

    Steps of one group at which environment and prompt are the same share a state, so that its
    value V is estimated once. The prompt contains all of the memory that later prompts can show,
    unless it was shortened.

    Args:
        played: the trajectories.
        tasks: number of the task of each trajectory.
        rows: numbers of the steps, counted over all trajectories.

    Returns:
        Per state: ``task``, ``turns`` before it, ``steps`` (positions in `rows`), and ``executed``,
        the turn of each of these steps.
    """
    places = [(i, t) for i, trajectory in enumerate(played) for t in range(len(trajectory))]
    states: dict[Any, Record] = {}
    for position, row in enumerate(rows):
        index, time = places[row]
        trajectory = played[index]
        turn = trajectory.steps[time].turn
        info = trajectory.steps[time - 1].info if time else trajectory.info
        key: Any = (trajectory.group, time, info.get("state_hash"), tuple(turn.prompt_ids.tolist()))
        if "state_hash" not in info or turn.prompt_truncated:
            key = position
        turns = trajectory.turns[:time]
        new = {
            "task": tasks[index],
            "turns": [saved(each, last=each is turns[-1]) for each in turns],
            "steps": [],
            "executed": [],
        }
        state = states.setdefault(key, new)
        state["steps"].append(position)
        state["executed"].append(saved(turn, last=True))
    return list(states.values())


def saved(turn: Turn, last: bool) -> Record:
    """Convert a turn of an agent's memory to JSON; a conversation continues the ids of the last."""
    record: Record = {
        "observation": turn.observation,
        "action": turn.action,
        "completion": turn.completion,
        "number": turn.number,
        "is_valid": turn.is_valid,
    }
    if last:
        ids = {"prompt_ids": turn.prompt_ids, "response_ids": turn.response_ids}
        record |= {name: values.tolist() for name, values in ids.items()}
    return record


def loaded(record: Record) -> Turn:
    """Convert a turn from JSON."""
    ids: Record = {
        name: np.array(record[name], np.int32)
        for name in ("prompt_ids", "response_ids")
        if name in record
    }
    return Turn(**record | ids)


def loaded_state(record: Record) -> tuple[AgentState, list[Turn]]:
    """Return the agent state of a record of `agent_states`, and the turns executed in it."""
    turns = tuple(map(loaded, record["turns"]))
    return AgentState(record["task"], turns), list(map(loaded, record["executed"]))
