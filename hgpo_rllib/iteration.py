"""What one iteration brought: computed once, then read by records, metrics, console and tests."""

from dataclasses import dataclass

from hgpo_rllib.rollout.scoring import ScoredTrajectories


@dataclass(frozen=True)
class IterationResult:
    """Everything that `HGPO.training_step` found, besides the new weights."""

    scored: ScoredTrajectories
    """Trajectories, step arrays (with a critic's values), advantages by level and combined."""
    statistics: dict[str, float]
    """Diagnostics of the groups and what the learner reported, by the names of metrics.jsonl; NaN
    is what was not measured."""
    seconds: dict[str, float]
    """``rollout_wait_s``, ``rollout_s``, ``advantage_s``, ``update_s`` (without the former) and
    ``sync_s``."""
    stale_rate: float
    """Share of steps that were drawn under other weights than those before the update."""
    failures: dict[str, int]
    """Failed plays, by the names in `hgpo_rllib.rollout.group.FAILURES`."""
