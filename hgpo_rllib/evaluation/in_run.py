"""Held-out evaluation of the current policy: RLlib's custom evaluation function."""

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EVALUATION_RESULTS
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from hgpo_rllib.rollout.tasks import TaskOrder

if TYPE_CHECKING:
    from hgpo_rllib.algorithm import HGPO

ALL_SPLITS = "all"
EVALUATION_SEED = 0  # of the order in which held-out games are drawn


def evaluate_splits(algorithm: "HGPO", runners: Any) -> tuple[dict[str, Any], int, int]:
    """Play `eval_episodes` tasks of every held-out split, each by a single member.

    They are drawn without replacement (again from the start when a split has fewer) in an order
    that is the same in every call and every run: sorted games would be one family after the other.

    Returns:
        Results per split (see `summarize`) with all episodes together under ``all``, environment
        steps, agent steps: what RLlib expects.
    """
    config = algorithm.config
    results, everything = {}, []
    for split in config.eval_splits:
        runner = algorithm.env_runner
        tasks = TaskOrder(runner.num_tasks(split), EVALUATION_SEED).take(config.eval_episodes)
        groups = runner.play(split, tasks, group_size=1, temperature=config.eval_temperature)
        episodes = members(groups)
        results[split] = summarize(episodes)
        everything += episodes
    results[ALL_SPLITS] = summarize(everything)
    # RLlib takes the results of a custom function from its metrics, not from the returned value.
    logger = MetricsLogger(root=False)
    logger.log_dict(results, window=1)
    algorithm.metrics.aggregate([logger.reduce()], key=(EVALUATION_RESULTS, ENV_RUNNER_RESULTS))
    steps = sum(map(len, everything))
    return results, steps, steps


def members(groups: list[MultiAgentEpisode]) -> list[SingleAgentEpisode]:
    """All members' episodes, group after group."""
    return [member for group in groups for member in group.agent_episodes.values()]


def summarize(episodes: list[SingleAgentEpisode]) -> dict[str, Any]:
    """Success rate with its standard error, mean length, and success per task family."""
    by_type: dict[str, list[bool]] = defaultdict(list)
    for episode in episodes:
        info = episode.get_infos(-1)
        by_type[info["task_type"]].append(bool(info["won"]))
    won = [success for successes in by_type.values() for success in successes]
    rate = float(np.mean(won))
    return {
        "success_rate": rate,
        "standard_error": math.sqrt(rate * (1 - rate) / len(won)),
        "episodes": len(won),
        "episode_length": float(np.mean([len(episode) for episode in episodes])),
        "by_task_type": {
            task_type: {"success_rate": float(np.mean(successes)), "episodes": len(successes)}
            for task_type, successes in sorted(by_type.items())
        },
    }
