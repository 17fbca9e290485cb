"""Episodes as versioned JSON lines: what the agent saw, said and did, and what it was worth."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from hgpo_rllib.rollout.trajectories import ScoredTrajectories

FORMAT = "hgpo-episode-1"


def episode_records(
    scored: ScoredTrajectories,
    sizes: NDArray[np.int64],
    tokenizer: PreTrainedTokenizerBase,
    iteration: int,
    split: str,
) -> Iterator[dict[str, Any]]:
    """One JSON object per member's episode, in order.

    `sizes` is the size of every step's group by depth, shape ``(depths, steps)``.
    """
    for member, advantages, returns, groups in zip(
        scored.members, scored.advantages(), scored.returns(), scored.split(sizes.T), strict=True
    ):
        infos = member.get_infos()
        outputs = {
            key: member.get_extra_model_outputs(key)
            for key in (
                "completion",
                "action",
                "is_valid",
                "response_ids",
                "response_truncated",
                "behaviour_logp",
                "weight_version",
                "weight_versions",
                "prompt_truncated",
                "request_s",
                "env_s",
            )
        }
        prompts = tokenizer.batch_decode(member.get_extra_model_outputs("prompt_ids"))
        yield {
            "format": FORMAT,
            "iteration": iteration,
            "split": split,
            "group": member.multi_agent_episode_id,
            "member": member.agent_id,
            "game": infos[0]["game"],
            "task_type": infos[0]["task_type"],
            "goal": infos[0]["goal"],
            "success": bool(infos[-1]["won"]),
            "episode_return": float(member.get_return()),
            "steps": [
                {
                    "time": t,
                    "anchor": member.get_observations(t),
                    "prompt": prompts[t],
                    "completion": outputs["completion"][t],
                    "action": outputs["action"][t],
                    "is_valid": bool(outputs["is_valid"][t]),
                    "inadmissible": bool(infos[t + 1]["inadmissible"]),
                    "reward": float(member.get_rewards(t)),
                    "step_return": float(returns[t]),
                    "advantage": float(advantages[t]),
                    "group_sizes": groups[t].tolist(),
                    "response_tokens": len(outputs["response_ids"][t]),
                    "response_ids": outputs["response_ids"][t].tolist(),
                    "behaviour_logp": outputs["behaviour_logp"][t].tolist(),
                    "weight_version": outputs["weight_version"][t],
                    "weight_versions": [list(part) for part in outputs["weight_versions"][t]],
                    "prompt_truncated": outputs["prompt_truncated"][t],
                    "response_truncated": outputs["response_truncated"][t],
                    "request_s": round(outputs["request_s"][t], 4),
                    "env_s": round(outputs["env_s"][t], 4),
                }
                for t in range(len(member))
            ],
        }
