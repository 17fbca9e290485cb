"""Held-out evaluation of the current policy: RLlib's custom evaluation function."""

import math
from typing import Any

import pandas as pd
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EVALUATION_RESULTS
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from hgpo_rllib.rollout.outcomes import summarize
from hgpo_rllib.rollout.tasks import HELD_OUT_ORDER_SEED, TaskOrder

ALL_SPLITS = "all"


def evaluate_splits(algorithm: Algorithm, runners: Any) -> tuple[dict[str, Any], int, int]:
    """Play `eval_episodes` tasks of every held-out split, each by a single member.

    They are drawn without replacement (again from the start when a split has fewer) in an order
    that is the same in every call and every run: sorted games would be one family after the other.

    Returns:
        Results per split (see `summarize_members`) with all episodes together under ``all``,
        environment steps, agent steps: what RLlib expects.
    """
    config = algorithm.config
    results, everything = {}, []
    for split in config.eval_splits:
        runner = algorithm.env_runner
        tasks = TaskOrder(runner.num_tasks(split), HELD_OUT_ORDER_SEED).take(config.eval_episodes)
        groups = runner.play(split, tasks, group_size=1, temperature=config.eval_temperature)
        episodes = members(groups)
        results[split] = summarize_members(episodes)
        everything += episodes
    results[ALL_SPLITS] = summarize_members(everything)
    # RLlib takes the results of a custom function from its metrics, not from the returned value.
    logger = MetricsLogger(root=False)
    logger.log_dict(results, window=1)
    algorithm.metrics.aggregate([logger.reduce()], key=(EVALUATION_RESULTS, ENV_RUNNER_RESULTS))
    steps = sum(map(len, everything))
    return results, steps, steps


def members(groups: list[MultiAgentEpisode]) -> list[SingleAgentEpisode]:
    """All members' episodes, group after group."""
    return [member for group in groups for member in group.agent_episodes.values()]


def summarize_members(episodes: list[SingleAgentEpisode]) -> dict[str, Any]:
    """See `summarize`, with the standard error of as many independent episodes."""
    common = summarize(pd.DataFrame([outcome_of(episode) for episode in episodes]))
    rate, count = common["success_rate"], common["episodes"]
    return {**common, "standard_error": math.sqrt(rate * (1 - rate) / count)}


def outcome_of(episode: SingleAgentEpisode) -> dict[str, Any]:
    """How a member's episode ended, as a row for `summarize`."""
    info = episode.get_infos(-1)
    return {
        "task_type": info["task_type"],
        "success": bool(info["won"]),
        "episode_length": len(episode),
    }
