"""The section `evaluation` of a run file."""

from pydantic import Field, field_validator

from hgpo_rllib.section import Name, Section, check_unique


class EvaluationSettings(Section):
    """Evaluation on held-out tasks during a run."""

    interval: int = Field(5, ge=0)
    """Number of iterations between evaluations. 0: evaluate only before and after training."""
    splits: list[Name] = Field(["valid_seen", "valid_unseen"], min_length=1)
    """Splits to evaluate."""
    episodes: int = Field(40, ge=1)
    """Number of episodes per split. Games are played in a fixed order; if a split has fewer
    games, they repeat."""
    temperature: float = Field(0.4, gt=0)
    """Sampling temperature."""

    _splits_are_different = field_validator("splits")(check_unique)
