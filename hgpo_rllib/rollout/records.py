"""Convert episodes to versioned JSON Lines: observations, responses, actions and advantages."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from hgpo_rllib.agent import Turn
from hgpo_rllib.jsonl import RUN_EPISODES
from hgpo_rllib.rollout.scoring import ScoredTrajectories


def episode_records(
    scored: ScoredTrajectories,
    sizes: NDArray[np.int64],
    tokenizer: PreTrainedTokenizerBase,
    iteration: int,
    split: str,
) -> Iterator[dict[str, Any]]:
    """Yield one JSON object per trajectory, in order.

    `sizes` is the size of every step's group by depth, shape ``(depths, steps)``.
    """
    rows = zip(
        scored.trajectories,
        scored.split(scored.advantage),
        scored.split(scored.steps.step_return),
        scored.split(sizes.T),
        strict=True,
    )
    for trajectory, advantages, returns, groups in rows:
        mixture = trajectory.info.get("mixture")
        yield {
            "format": RUN_EPISODES,
            "iteration": iteration,
            "split": split,
            "group": trajectory.group,
            "member": f"member_{trajectory.member}",
            "game": trajectory.info["game"],
            **({"environment": mixture["environment"]} if mixture else {}),
            "task_type": trajectory.info["task_type"],
            "goal": trajectory.info["goal"],
            "success": trajectory.won,
            "episode_return": trajectory.episode_return,
            "steps": [
                {
                    "time": t,
                    "anchor": step.turn.observation,
                    **_preceding(step.turn, tokenizer),
                    **_response(step.turn, tokenizer),
                    "action": step.turn.action,
                    "inadmissible": bool(step.info["inadmissible"]),
                    "reward": step.reward,
                    "step_return": float(returns[t]),
                    "advantage": float(advantages[t]),
                    "group_sizes": groups[t].tolist(),
                    "env_s": round(step.env_s, 4),
                }
                for t, step in enumerate(trajectory.steps)
            ],
        }


def _preceding(turn: Turn, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the responses before the acting one; empty if there are none."""
    if not turn.preceding:
        return {}
    before = [{"role": r.role, **_response(r, tokenizer)} for r in turn.preceding]
    return {"role": turn.role, "preceding": before}


def _response(turn: Turn, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    return {
        "prompt": tokenizer.decode(turn.prompt_ids),
        "completion": turn.completion,
        "is_valid": turn.is_valid,
        "response_tokens": len(turn.response_ids),
        "response_ids": turn.response_ids.tolist(),
        "behavior_logp": turn.behavior_logp.tolist(),
        "weight_version": turn.weight_version,
        "weight_versions": [list(part) for part in turn.weight_versions],
        "prompt_truncated": turn.prompt_truncated,
        "response_truncated": turn.response_truncated,
        "request_s": round(turn.request_s, 4),
    }
