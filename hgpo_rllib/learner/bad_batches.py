"""Detect and describe mini-batches whose optimizer step would damage the policy."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.learner.batching import Columns

REMEDY = (
    "the run ends before this optimizer step and saves nothing: its last checkpoint is from before "
    "this iteration; set learner.on_bad_batch=skip to skip such steps"
)
MUST_BE_FINITE = {
    "loss": "loss",
    "grad_norm": "gradient norm",
    "critic_grad_norm": "critic's gradient norm",
}
SKIPPED = "its optimizer step is skipped (learner.on_bad_batch=skip)"


def find_problem(values: Mapping[str, float], max_ratio: float | None) -> str | None:
    """Return what is wrong with a mini-batch, or None.

    Args:
        values: ``loss``, ``grad_norm``, ``critic_grad_norm`` (absent without a critic) and
            ``ratio_max`` (absent without tokens) of the mini-batch.
        max_ratio: see `LearnerSettings.max_ratio`.
    """
    for key, name in MUST_BE_FINITE.items():
        if not math.isfinite(values.get(key, 0.0)):
            return f"the {name} is {values[key]}"
    ratio = values.get("ratio_max", 1.0)
    if max_ratio is not None and ratio > max_ratio:
        return f"a token ratio of {ratio:.3g} exceeds learner.max_ratio={max_ratio:g}"
    return None


def describe_batch(columns: Columns, rows: NDArray[np.int64]) -> str:
    """Describe the steps in these rows for a message: sizes, advantages, log-probabilities."""
    lengths = columns["response_length"].numpy()[rows]
    prompts = columns["prompt_length"].numpy()[rows]
    advantage = columns["advantage"].numpy()[rows]
    present = np.arange(columns["behavior_logp"].shape[1]) < lengths[:, None]
    logp = columns["behavior_logp"].numpy()[rows][present]
    zeros = sum(not np.any(row) for row in advantage)
    if advantage.ndim == 2:  # one per token
        advantage = advantage[present]
    return (
        f"{len(rows)} steps, prompts of {_span(prompts)} and responses of {_span(lengths)} tokens, "
        f"{lengths.sum()} response tokens; advantages {_span(advantage)}, "
        f"zero in {zeros} of the steps; engine log-probabilities {_span(logp)}"
    )


def _span(values: NDArray) -> str:
    """Return the range of the finite values as text, and the number of values that are not."""
    finite = values[np.isfinite(values)]
    span = f"{finite.min():.4g} to {finite.max():.4g}" if finite.size else "none finite"
    rest = values.size - finite.size
    return f"{span} ({rest} not finite)" if rest and finite.size else span
