"""An evaluated episode as one versioned JSON object."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.evaluation.plan import Slot
from hgpo_rllib.jsonl import EVALUATED_EPISODES
from hgpo_rllib.rollout.member import Act, Step, Trajectory

Decode = Callable[[NDArray[np.int32]], str]
Record = dict[str, Any]


def key_of(record: Record) -> tuple[int, int]:
    """Seed and place, which name an episode of an evaluation."""
    return record["seed"], record["place"]


def episode_record(
    trajectory: Trajectory, slot: Slot, split: str, game: str, decode: Decode
) -> Record:
    """One episode: no times and nothing of the machine, so that equal episodes are equal lines.

    Args:
        trajectory: the episode, the last trial of an agent that has several.
        slot: its place in the plan.
        split: of the environment.
        game: the game's name.
        decode: token ids to text.
    """
    steps = [
        _step(time, step, seen, decode)
        for time, (step, seen) in enumerate(
            zip(trajectory.steps, observations(trajectory), strict=True)
        )
    ]
    last = trajectory.steps[-1].info
    won = bool(last["won"])
    prompt, response = tokens(trajectory)
    return {
        "format": EVALUATED_EPISODES,
        "seed": slot.seed,
        "place": slot.place,
        "split": split,
        "game": game,
        "task_type": trajectory.info["task_type"],
        "goal": trajectory.info["goal"],
        "success": won,
        "score": float(last.get("task_score", won)),
        "episode_return": sum(step.reward for step in trajectory.steps),
        "prompt_tokens": prompt,
        "response_tokens": response,
        "trials": 1 + len(trajectory.earlier),
        "lost_trials": [
            {
                "actions": [step.act.action for step in trial.trajectory.steps],
                "reflection": trial.reflection.completion,
            }
            for trial in trajectory.earlier
        ],
        "steps": steps,
    }


def observations(trajectory: Trajectory) -> list[str]:
    """What each step was taken on."""
    return [trajectory.observation, *(step.observation for step in trajectory.steps[:-1])]


def tokens(trajectory: Trajectory) -> tuple[int, int]:
    """Of all prompts and responses, those of earlier trials and reflections included."""
    acts = list(_acts(trajectory))
    return sum(act.tokens[0] for act in acts), sum(act.tokens[1] for act in acts)


def _acts(trajectory: Trajectory) -> Iterable[Act]:
    for trial in trajectory.earlier:
        yield from (step.act for step in trial.trajectory.steps)
        yield trial.reflection
    yield from (step.act for step in trajectory.steps)


def _step(time: int, step: Step, seen: str, decode: Decode) -> Record:
    act = step.act
    prompt, response = act.tokens
    return {
        "time": time,
        "anchor": seen,
        "prompt": decode(act.prompt_ids) if act.prompt is None else act.prompt,
        "completion": act.completion,
        "action": act.action,
        "is_valid": act.is_valid,
        "inadmissible": bool(step.info["inadmissible"]),
        "reward": step.reward,
        "prompt_tokens": prompt,
        "response_tokens": response,
        "prompt_truncated": act.prompt_truncated,
        "response_truncated": act.response.finish_reason == "length",
    }


def in_order(records: Iterable[Record], slots: Sequence[Slot]) -> list[Record]:
    """Records in the order of the plan; those that it does not have are left out."""
    by_key = {key_of(record): record for record in records}
    keys = ((slot.seed, slot.place) for slot in slots)
    return [by_key[key] for key in keys if key in by_key]
