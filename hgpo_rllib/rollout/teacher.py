"""Prompts of the teacher: those of the responses, with text about the whole episode."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from env_wrappers.errors import DataError
from hgpo_rllib.agent import TokenRenderer
from hgpo_rllib.agent.templates import load_template
from hgpo_rllib.environments import OraclePlan
from hgpo_rllib.rollout.trajectory import Trajectory, response_rows

logger = logging.getLogger(__name__)


def teacher_prompts(
    trajectories: Sequence[Trajectory], texts: Sequence[str], renderer: TokenRenderer
) -> list[NDArray[np.int32]]:
    """Return the prompt of each response with the text of its trajectory at its end.

    Prompts are in the order of `response_rows`.

    Raises:
        ConfigError: a prompt does not end like a prompt of the model's chat template.
    """
    rows = response_rows(trajectories)
    return [renderer.extended(row.response.prompt_ids, texts[row.trajectory]) for row in rows]


def outcome_texts(trajectories: Sequence[Trajectory]) -> list[str]:
    """Return how each episode ended: with success or not, and its last observation."""
    template = load_template("hindsight_outcome")
    return [template.render(won=t.won, observation=t.steps[-1].observation) for t in trajectories]


def plan_texts(
    trajectories: Sequence[Trajectory], find_plan: Callable[[Mapping[str, Any]], OraclePlan]
) -> list[str]:
    """Return a plan that wins each episode from its start; empty where there is no plan.

    `find_plan` is the oracle of the environment, called once per group.
    """

    def plan(info: Mapping[str, Any]) -> Sequence[str]:
        try:
            return find_plan(info).actions
        except DataError as error:  # such as a game without a walkthrough
            logger.warning("no plan for the teacher: %s", error)
            return []

    template = load_template("hindsight_plan")
    tasks = {trajectory.group: trajectory.info for trajectory in trajectories}
    texts = {group: template.render(actions=plan(info)) for group, info in tasks.items()}
    return [texts[trajectory.group] for trajectory in trajectories]
