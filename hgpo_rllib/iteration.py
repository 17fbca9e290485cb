"""Results of one iteration, computed once and read by records, metrics, console and tests."""

from dataclasses import dataclass

from hgpo_rllib.rollout.scoring import ScoredTrajectories


@dataclass(frozen=True)
class IterationResult:
    """Results of `HGPO.training_step`, except for the new weights."""

    scored: ScoredTrajectories
    """Trajectories, step arrays (including a critic's values), advantages by level and combined."""
    statistics: dict[str, float]
    """Diagnostics of the groups and learner metrics, named as in metrics.jsonl; NaN if not
    measured."""
    seconds: dict[str, float]
    """``rollout_wait_s``, ``rollout_s``, ``advantage_s``, ``update_s`` (excludes ``advantage_s``)
    and ``sync_s``."""
    stale_rate: float
    """Share of responses whose first token was sampled with weights older than the latest."""
    failures: dict[str, int]
    """Failure counts, by the names in `hgpo_rllib.rollout.group.FAILURES`."""
