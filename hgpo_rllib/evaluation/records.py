"""Convert evaluated episodes to versioned JSON objects."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.agent import Turn
from hgpo_rllib.evaluation.plan import Slot
from hgpo_rllib.jsonl import EVALUATED_EPISODES
from hgpo_rllib.rollout.trajectory import Step, Trajectory

Decode = Callable[[NDArray[np.int32]], str]
Record = dict[str, Any]


def episode_record(
    trajectory: Trajectory, slot: Slot, split: str, game: str, decode: Decode
) -> Record:
    """Return one episode as JSON, without times or machine data: equal episodes are equal lines.

    The trajectory is that of the last trial if the agent has several.
    """
    last = trajectory.steps[-1].info
    tokens = [turn.tokens for turn in _turns(trajectory)]  # of earlier trials and reflections too
    return {
        "format": EVALUATED_EPISODES,
        "seed": slot.seed,
        "place": slot.place,
        "split": split,
        "game": game,
        "task_type": trajectory.info["task_type"],
        "goal": trajectory.info["goal"],
        "success": trajectory.won,
        "score": float(last.get("task_score", trajectory.won)),
        "episode_return": trajectory.episode_return,
        "prompt_tokens": sum(prompt for prompt, _ in tokens),
        "response_tokens": sum(response for _, response in tokens),
        "trials": 1 + len(trajectory.earlier),
        "lost_trials": [
            {
                "actions": [turn.action for turn in trial.trajectory.turns],
                "reflection": trial.reflection.completion,
            }
            for trial in trajectory.earlier
        ],
        "steps": [_step(time, step, decode) for time, step in enumerate(trajectory.steps)],
    }


def _turns(trajectory: Trajectory) -> Iterable[Turn]:
    for trial in trajectory.earlier:
        yield from trial.trajectory.turns
        yield trial.reflection
    yield from trajectory.turns


def _step(time: int, step: Step, decode: Decode) -> Record:
    turn = step.turn
    prompt, response = turn.tokens
    return {
        "time": time,
        "anchor": turn.observation,
        "prompt": decode(turn.prompt_ids) if turn.prompt is None else turn.prompt,
        "completion": turn.completion,
        "action": turn.action,
        "is_valid": turn.is_valid,
        "inadmissible": bool(step.info["inadmissible"]),
        "reward": step.reward,
        "prompt_tokens": prompt,
        "response_tokens": response,
        "prompt_truncated": turn.prompt_truncated,
        "response_truncated": turn.response_truncated,
    }
