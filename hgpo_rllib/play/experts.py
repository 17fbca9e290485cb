"""Experts that follow a plan, or search like the explorer of the warm start."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from env_wrappers.alfworld.explorer import APPLIANCES, Explorer, goal_of
from env_wrappers.alfworld.planner import find_plan, recorded_plan
from env_wrappers.errors import DataError
from hgpo_rllib.environments.spec import Expert

EXPERTS = ("oracle", "explorer", "planner")
"""oracle: recorded walkthrough; explorer: random search; planner: Fast Downward."""


class PlanFollower:
    """Play a plan, with the explorer's thoughts for each action."""

    def __init__(self, plan: Sequence[str]):
        """Initialize with `plan`, a list of commands that win."""
        self._rest = list(zip(thoughts_for(plan), plan, strict=True))

    def act(self, observation: str, admissible: Sequence[str], last: str | None) -> tuple[str, str]:
        """Return the next thought and action of the plan, regardless of the observation.

        Raises:
            DataError: the plan ended without winning.
        """
        if not self._rest:
            raise DataError("the plan ends before the goal is reached")
        return self._rest.pop(0)


def thoughts_for(plan: Sequence[str]) -> list[str]:
    """Return one thought per command: the purpose of the next command that handles an object."""
    thoughts: list[str] = []
    thing, purpose, way = "", "", ""
    for command in reversed(plan):
        verb, *words = command.split()
        if verb == "take":
            thing, way = words[0], "find it"
            thoughts.append(f"{thing} {words[1]}: take it")
            continue
        if verb == "use":
            thing, purpose, way = words[0], "use it", "find it"
        elif verb in APPLIANCES:
            thing, purpose, way = words[0], f"{verb} it", f"{verb} it"
        elif verb in ("move", "put"):
            thing, way = words[0], f"put it in {words[3]}"
            purpose = way
        else:
            purpose = way
        thoughts.append(f"{thing}: {purpose}" if thing else "look around")
    return thoughts[::-1]


def make_expert(
    expert: str,
    info: Mapping[str, Any],
    rng: random.Random,
    planner_seconds: float,
    trusted: bool = False,
) -> Expert:
    """Return the expert of that name (see `EXPERTS`) for the episode that `info` describes.

    Args:
        trusted: whether the game is trusted; see `env_wrappers.alfworld.engine.GameEngine`.

    Raises:
        DataError: the expert cannot play this game.
    """
    game = Path(info["game"])
    if expert == "oracle":
        return PlanFollower(recorded_plan(game, trusted))
    if expert == "planner":
        return PlanFollower(find_plan(game, planner_seconds, trusted))
    try:
        goal = goal_of(game)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"the explorer needs traj_data.json beside {game}: {error!r}") from error
    return Explorer(goal, info["admissible_actions"], rng)
