"""From what an iteration brought to one flat row of metrics.jsonl."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS

from hgpo_rllib.iteration import IterationResult
from hgpo_rllib.rollout.trajectories import ScoredTrajectories


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


def iteration_metrics(iteration: IterationResult) -> dict[str, float | None]:
    """All numbers of an iteration, by the names of metrics.jsonl.

    None is what was not measured: a gap that no step has, the losses of an update left out.
    """
    rollout = rollout_metrics(iteration.scored)
    return {
        **rollout,
        **iteration.failures,
        "stale_rate": iteration.stale_rate,
        **{
            name: None if np.isnan(value) else value
            for name, value in sorted(iteration.statistics.items())
        },
        **iteration.seconds,
        "tokens_per_s": rollout["tokens_generated"] / iteration.seconds["rollout_s"],
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
