"""Convert iteration and evaluation results to rows of metrics.jsonl and evaluation.jsonl."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS

from hgpo_rllib.iteration import IterationResult
from hgpo_rllib.rollout.trajectory import Trajectory


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Compute success, lengths, validity, tokens and times of an iteration's episodes."""
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    turns = [step.turn for step in steps]

    def mean(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    return {
        "episodes": len(trajectories),
        "env_steps": len(steps),
        "success_rate": mean(trajectory.won for trajectory in trajectories),
        "return_mean": mean(trajectory.episode_return for trajectory in trajectories),
        "episode_length": len(steps) / len(trajectories),
        "invalid_rate": 1 - mean(turn.is_valid for turn in turns),
        "inadmissible_rate": mean(step.info["inadmissible"] for step in steps),
        "truncated_prompt_rate": mean(turn.prompt_truncated for turn in turns),
        "truncated_response_rate": mean(turn.response_truncated for turn in turns),
        "request_s": mean(turn.request_s for turn in turns),
        "engine_s": mean(turn.engine_s for turn in turns),
        "env_s": mean(step.env_s for step in steps),
        "tokens_generated": sum(len(r.response_ids) for turn in turns for r in turn.responses),
    }


def iteration_metrics(iteration: IterationResult) -> dict[str, float | None]:
    """Return all metrics of an iteration, by their names in metrics.jsonl.

    Metrics that were not measured are None, such as a gap that no step has or the losses of a
    skipped update.
    """
    rollout = rollout_metrics(iteration.scored.trajectories)
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
    """Return one row of plain numbers per split; `seconds` is the duration of the evaluation."""
    same = {"temperature": temperature, "evaluation_s": seconds}
    return [
        {"iteration": iteration, "split": split, **same, **_plain(values)}
        for split, values in sorted(result[ENV_RUNNER_RESULTS].items())
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return float(value)
