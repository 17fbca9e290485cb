"""From RLlib's nested results and episodes to one flat row an iteration."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from ray.rllib.utils.metrics import (
    ALL_MODULES,
    ENV_RUNNER_RESULTS,
    LEARNER_RESULTS,
)

from hgpo_rllib.rollout.group import POLICY_ID
from hgpo_rllib.rollout.trajectories import ScoredTrajectories

LEARNER_METRICS = (
    "loss",
    "policy_loss",
    "kl",
    "clip_fraction",
    "entropy",
    "grad_norm",
    "ratio_max",
    "behaviour_logp_gap",
    "behaviour_logp_gap_mean",
    "behaviour_kl",
    "importance_weight",
    "importance_cut_fraction",
    "value_loss",
    "value_clip_fraction",
    "explained_variance",
    "critic_grad_norm",
    "skipped_batches",
    "advantage_mean",
    "zero_advantage_fraction",
    "advantage_peak_mib",
)
LEARNER_PREFIXES = ("level_", "oracle_")


def rollout_metrics(scored: ScoredTrajectories) -> dict[str, float]:
    """Success, lengths, validity, tokens and times of an iteration's episodes."""
    members = scored.members
    steps = sum(len(member) for member in members)
    inadmissible = [info["inadmissible"] for m in members for info in m.get_infos()[1:]]
    tokens = sum(len(r) for m in members for r in m.get_extra_model_outputs("response_ids"))

    def mean(name: str) -> float:
        return float(np.mean([v for m in members for v in m.get_extra_model_outputs(name)]))

    return {
        "episodes": len(members),
        "env_steps": steps,
        "success_rate": float(np.mean([m.get_infos(-1)["won"] for m in members])),
        "return_mean": float(np.mean([m.get_return() for m in members])),
        "episode_length": steps / len(members),
        "invalid_rate": 1 - mean("is_valid"),
        "inadmissible_rate": float(np.mean(inadmissible)),
        "truncated_prompt_rate": mean("prompt_truncated"),
        "truncated_response_rate": mean("response_truncated"),
        "request_s": mean("request_s"),
        "engine_s": mean("engine_s"),
        "env_s": mean("env_s"),
        "tokens_generated": tokens,
    }


def learner_metrics(result: Mapping[str, Any]) -> dict[str, float | None]:
    """What the learner reported, by the names of metrics.jsonl.

    None is what it did not measure: a gap that no step has, the losses of an update left out.
    """
    policy = result[LEARNER_RESULTS][POLICY_ID]
    names = [n for n in policy if n in LEARNER_METRICS or n.startswith(LEARNER_PREFIXES)]
    values = {name: float(policy[name]) for name in sorted(names)}
    return {name: None if np.isnan(value) else value for name, value in values.items()} | {
        "advantage_s": float(result[LEARNER_RESULTS][ALL_MODULES]["advantage_seconds"]),
        "served_learner_logp_gap": float(result["served_learner_logp_gap"]),
    }


def evaluation_rows(
    result: Mapping[str, Any], iteration: int, temperature: float, seconds: float
) -> list[dict[str, Any]]:
    """One row per split of an evaluation result, plain numbers; `seconds` are those of all."""
    same = {"temperature": temperature, "evaluation_s": seconds}
    return [
        {"iteration": iteration, "split": split, **same, **_plain(values)}
        for split, values in sorted(result[ENV_RUNNER_RESULTS].items())
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return float(value)
