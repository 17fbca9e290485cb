"""Scripted players of ALFWorld: recorded or planned walkthroughs, and the explorer."""

import random
from collections.abc import Sequence
from pathlib import Path

from env_wrappers.alfworld.explorer import APPLIANCES, Explorer, goal_of
from env_wrappers.alfworld.planner import find_plan, recorded_plan
from env_wrappers.errors import DataError
from hgpo_rllib.environments.spec import Info, OraclePlan, PlanFollower

PLANNER_SECONDS = 300.0
"""Time limit of the planner for one game. Some kitchens take minutes."""


def recorded(info: Info, trusted: bool) -> OraclePlan:
    """Return the walkthrough in the game file."""
    plan = recorded_plan(Path(info["game"]), trusted)
    return OraclePlan(plan, thoughts=thoughts_for(plan))


def explore(info: Info, rng: random.Random) -> Explorer:
    """Return the explorer, which searches at random for the objects of the goal.

    Raises:
        DataError: the goal is not beside the game file.
    """
    game = Path(info["game"])
    try:
        goal = goal_of(game)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"the explorer needs traj_data.json beside {game}: {error!r}") from error
    return Explorer(goal, info["admissible_actions"], rng)


def follow_plan(info: Info, rng: random.Random, trusted: bool) -> PlanFollower:
    """Return a player of a plan of Fast Downward.

    Raises:
        DataError: no plan was found in time.
    """
    plan = find_plan(Path(info["game"]), PLANNER_SECONDS, trusted)
    return PlanFollower(OraclePlan(plan, thoughts=thoughts_for(plan)))


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
