"""Episodes as versioned JSON lines: what the agent saw, said and did, and what it was worth."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from hgpo_rllib.rollout.group import member_id
from hgpo_rllib.rollout.trajectories import ScoredTrajectories

FORMAT = "hgpo-episode-1"


def episode_records(
    scored: ScoredTrajectories,
    sizes: NDArray[np.int64],
    tokenizer: PreTrainedTokenizerBase,
    iteration: int,
    split: str,
) -> Iterator[dict[str, Any]]:
    """One JSON object per trajectory, in order.

    `sizes` is the size of every step's group by depth, shape ``(depths, steps)``.
    """
    rows = zip(
        scored.trajectories,
        scored.advantages(),
        scored.returns(),
        scored.split(sizes.T),
        strict=True,
    )
    for trajectory, advantages, returns, groups in rows:
        prompts = tokenizer.batch_decode([turn.prompt_ids for turn in trajectory.turns])
        yield {
            "format": FORMAT,
            "iteration": iteration,
            "split": split,
            "group": trajectory.group,
            "member": member_id(trajectory.member),
            "game": trajectory.info["game"],
            "task_type": trajectory.info["task_type"],
            "goal": trajectory.info["goal"],
            "success": trajectory.won,
            "episode_return": trajectory.episode_return,
            "steps": [
                {
                    "time": t,
                    "anchor": step.turn.observation,
                    "prompt": prompts[t],
                    "completion": step.turn.completion,
                    "action": step.turn.action,
                    "is_valid": step.turn.is_valid,
                    "inadmissible": bool(step.info["inadmissible"]),
                    "reward": step.reward,
                    "step_return": float(returns[t]),
                    "advantage": float(advantages[t]),
                    "group_sizes": groups[t].tolist(),
                    "response_tokens": len(step.turn.response_ids),
                    "response_ids": step.turn.response_ids.tolist(),
                    "behaviour_logp": step.turn.behaviour_logp.tolist(),
                    "weight_version": step.turn.weight_version,
                    "weight_versions": [list(part) for part in step.turn.weight_versions],
                    "prompt_truncated": step.turn.prompt_truncated,
                    "response_truncated": step.turn.response_truncated,
                    "request_s": round(step.turn.request_s, 4),
                    "env_s": round(step.env_s, 4),
                }
                for t, step in enumerate(trajectory.steps)
            ],
        }
