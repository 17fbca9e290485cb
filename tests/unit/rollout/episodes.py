"""A group of short episodes that end at different times."""

from typing import Any

import numpy as np

from hgpo_rllib.agent import Turn
from hgpo_rllib.rollout.trajectory import Step, Trajectory
from hgpo_rllib.settings.algorithm import AlgorithmSettings

SETTINGS = AlgorithmSettings(gamma=0.5, invalid_penalty=0.25, context_length=1, normalize="mean")
Play = tuple[str, float, bool]  # next observation, reward, whether the action is valid
PLAYS: dict[str, list[Play]] = {
    "member_0": [("desk", 0.0, True), ("shelf", 0.0, False), ("mug", 10.0, True)],
    "member_1": [("desk", 0.0, True)],  # truncated while the others continue
    "member_2": [("desk", 0.0, False), ("desk", 0.0, True)],
}


def info(member: str, **changes: Any) -> dict[str, Any]:
    """Return an environment's info."""
    common = {"game": "games/7", "task_type": "pick", "goal": f"goal of {member}"}
    return common | {"won": False, "inadmissible": False} | changes


def group(name: str = "group") -> list[Trajectory]:
    """Return the trajectories of a group whose members end at different times."""
    return [trajectory(name, member) for member in range(3)]


def trajectory(name: str, member: int) -> Trajectory:
    """Return the trajectory of one member."""
    key = f"member_{member}"
    plays = PLAYS[key]
    seen = ["room", *(observation for observation, _, _ in plays)]
    steps = []
    for t, (observation, reward, is_valid) in enumerate(plays):
        number, last = 10 * member + t, t + 1 == len(plays)
        turn = Turn(
            seen[t],
            f"action {number}",
            f"completion {number}",
            number=t + 1,
            is_valid=is_valid,
            prompt_ids=np.arange(t + 2, dtype=np.int32) + 5,
            prompt_truncated=t == 1,
            response_ids=np.full(t + 1, number, np.int32),
            response_truncated=t == 2,
            behavior_logp=np.full(t + 1, -number / 8, np.float32),
            weight_version=f"w:{t}",
            weight_versions=(("w:0", 1), ("w:1", 1)) if t == 1 else (),
            request_s=t / 4,
            engine_s=t / 5,
        )
        after = info(key, won=reward > 0, inadmissible=not is_valid)
        won, lost = last and reward > 0, last and reward == 0
        steps.append(Step(turn, observation, reward, won, lost, after, t / 8))
    return Trajectory(info(key), steps, name, member)
