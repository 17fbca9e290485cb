"""Convert iteration and evaluation results to rows of metrics.jsonl and evaluation.jsonl."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS

from hgpo_rllib.iteration import IterationResult
from hgpo_rllib.jsonl import ALL
from hgpo_rllib.metrics import OF_ENVIRONMENTS
from hgpo_rllib.rollout.held_out import TaskCount
from hgpo_rllib.rollout.trajectory import Trajectory, have_equal_returns

FINAL_SPLITS = ("test", "test_products", "valid_unseen")
"""Splits for final numbers: a policy chosen on them would look better there than it is."""


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Compute success, lengths, validity, tokens and times of an iteration's episodes."""
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    turns = [step.turn for step in steps]
    groups = groupby(trajectories, key=lambda trajectory: trajectory.group)

    def mean(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    return {
        "episodes": len(trajectories),
        "env_steps": len(steps),
        "success_rate": mean(trajectory.won for trajectory in trajectories),
        "equal_return_rate": mean(have_equal_returns(list(group)) for _, group in groups),
        "return_mean": mean(trajectory.episode_return for trajectory in trajectories),
        "episode_length": len(steps) / len(trajectories),
        "invalid_rate": 1 - mean(turn.is_valid for turn in turns),
        "inadmissible_rate": mean(step.info["inadmissible"] for step in steps),
        "truncated_prompt_rate": mean(turn.prompt_truncated for turn in turns),
        "truncated_response_rate": mean(turn.response_truncated for turn in turns),
        "request_s": mean(turn.request_s for turn in turns),
        "engine_s": mean(turn.engine_s for turn in turns),
        "env_s": mean(step.env_s for step in steps),
        "tokens_generated": sum(len(r.response_ids) for turn in turns for r in turn.responses),
    }


def environment_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Compute the metrics of each environment of a mixture; without a mixture, there are none."""
    played = defaultdict(list)
    for trajectory in trajectories:
        if mixture := trajectory.info.get("mixture"):
            played[mixture["environment"]].append(trajectory)
    values = {name: rollout_metrics(own) for name, own in sorted(played.items())}
    return {
        f"{metric}{name}": own[metric.removesuffix("/")]
        for metric in OF_ENVIRONMENTS
        for name, own in values.items()
    }


def iteration_metrics(iteration: IterationResult) -> dict[str, float | None]:
    """Return all metrics of an iteration, by their names in metrics.jsonl.

    Metrics that were not measured are None, such as a gap that no step has or the losses of a
    skipped update.
    """
    rollout = rollout_metrics(iteration.scored.trajectories)
    return {
        **rollout,
        **environment_metrics(iteration.scored.trajectories),
        **iteration.failures,
        "stale_rate": iteration.stale_rate,
        **{
            name: None if np.isnan(value) else value
            for name, value in sorted(iteration.statistics.items())
        },
        **iteration.seconds,
        "tokens_per_s": rollout["tokens_generated"] / iteration.seconds["rollout_s"],
    }


def evaluation_rows(
    result: Mapping[str, Any],
    tasks: Mapping[str, Sequence[TaskCount]],
    iteration: int,
    temperature: float,
    seconds: float,
) -> list[dict[str, Any]]:
    """Return one row of plain numbers per split.

    `result` is what `HGPO.evaluate` returned, `tasks` are `HGPO.held_out_tasks`: counts by split.
    """
    same = {"temperature": temperature, "evaluation_s": seconds}
    return [
        {"iteration": iteration, "split": split, **same, **_plain(values)}
        | ({"by_task": tasks[split]} if split in tasks else {})
        for split, values in sorted(result[ENV_RUNNER_RESULTS].items())
    ]


def selection_rate(rows: Iterable[Mapping[str, Any]]) -> float:
    """Return the success rate of one evaluation by which the best policy is chosen.

    It is the mean over the evaluated splits other than `FINAL_SPLITS`, and the rate of all episodes
    if only those were evaluated. `rows` are those of `evaluation_rows`.
    """
    rates = {row["split"]: row["success_rate"] for row in rows}
    own = {split: split.rpartition(".")[2] for split in rates}  # without the environment's name
    chosen = [rate for split, rate in rates.items() if own[split] not in (ALL, *FINAL_SPLITS)]
    return sum(chosen) / len(chosen) if chosen else rates[ALL]


def scalars(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the numbers of rows by name: of an evaluation, ``evaluation/<split>/<name>``."""
    return {
        f"evaluation/{row['split']}/{name}" if "split" in row else name: value
        for row in rows
        for name, value in row.items()
        if isinstance(value, int | float) and not ("split" in row and name == "iteration")
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return None if np.isnan(value) else float(value)
