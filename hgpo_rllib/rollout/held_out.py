"""Held-out evaluation of the current policy, as RLlib's custom evaluation function."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EVALUATION_RESULTS
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from hgpo_rllib.jsonl import ALL
from hgpo_rllib.rollout.outcomes import clustered_error, summarize
from hgpo_rllib.rollout.tasks import HELD_OUT_ORDER_SEED, TaskOrder
from hgpo_rllib.rollout.trajectory import Trajectory

logger = logging.getLogger(__name__)


class TaskCount(NamedTuple):
    """Result of one task in an evaluation; a list of three numbers in evaluation.jsonl."""

    task: int
    """Number of the task in its split."""
    episodes: int
    successes: int


def evaluate_splits(algorithm: Algorithm, runners: Any) -> tuple[dict[str, Any], int, int]:
    """Play `eval_episodes` tasks of every held-out split, one episode each.

    Tasks are drawn without replacement (repeating if a split has fewer) in a shuffled order that
    is the same in every call and every run. In sorted order, tasks of one type would be adjacent.
    The counts of each task are stored in `algorithm.held_out_tasks`.

    Returns:
        Results per split (see `summarize_trajectories`) and of all episodes under ``all``,
        environment steps, agent steps, as RLlib expects.
    """
    config, runner = algorithm.config, algorithm.env_runner
    results, everything = {}, []
    for split in config.eval_splits:
        tasks = TaskOrder(runner.num_tasks(split), HELD_OUT_ORDER_SEED).first(config.eval_episodes)
        played = runner.play(split, tasks, group_size=1, temperature=config.eval_temperature)
        if missing := len(tasks) - len(played):
            logger.warning(
                "%s: %d of %d episodes failed and are missing in the results",
                split,
                missing,
                len(tasks),
            )
        results[split] = summarize_trajectories(played)
        algorithm.held_out_tasks[split] = count_by_task(played, tasks)
        everything += played
    results[ALL] = summarize_trajectories(everything)
    # RLlib reads the results of a custom function from the metrics, not from the return value.
    metrics = MetricsLogger(root=False)
    metrics.log_dict(results, window=1)
    # Otherwise it would also read the last results of other splits and task types.
    algorithm.metrics.delete(EVALUATION_RESULTS, ENV_RUNNER_RESULTS, key_error=False)
    algorithm.metrics.aggregate([metrics.reduce()], key=(EVALUATION_RESULTS, ENV_RUNNER_RESULTS))
    steps = sum(map(len, everything))
    return results, steps, steps


def count_by_task(trajectories: Sequence[Trajectory], tasks: Sequence[int]) -> list[TaskCount]:
    """Count the episodes and successes of each task, sorted by task.

    `HGPOEnvRunner.play` played `tasks`, so the name of a group ends in its index there.
    """
    played = [tasks[int(trajectory.group.rpartition("/")[2])] for trajectory in trajectories]
    won = pd.Series([trajectory.won for trajectory in trajectories], dtype=int)
    counts = won.groupby(played).agg(["size", "sum"])
    return [TaskCount(*map(int, row)) for row in counts.itertuples()]


def summarize_trajectories(trajectories: list[Trajectory]) -> dict[str, Any]:
    """Return `summarize`, and the standard errors of the success rates (`clustered_error`)."""
    outcomes = [
        {
            # With the split, since names of games are unique only in their split.
            "game": f"{trajectory.group.rpartition('/')[0]}/{trajectory.info['game']}",
            "task_type": trajectory.steps[-1].info["task_type"],
            "success": trajectory.won,
            "episode_length": len(trajectory),
        }
        for trajectory in trajectories
    ]
    episodes = pd.DataFrame(outcomes)
    found = summarize(episodes)
    found["standard_error"] = clustered_error(episodes["success"], episodes["game"])
    for name, part in episodes.groupby("task_type"):
        error = clustered_error(part["success"], part["game"])
        found["by_task_type"][str(name)]["standard_error"] = error
    return found
