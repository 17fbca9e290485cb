"""Settings of the advantage estimators."""

from dataclasses import dataclass

from hgpo_rllib.advantages.contexts import Contexts
from hgpo_rllib.advantages.groups import Normalize


@dataclass(frozen=True)
class EstimatorSettings:
    """Settings of all estimators; the docstring of each lists the fields that it reads."""

    context_length: int = 2
    """K, the deepest level of shared history."""
    weight_alpha: float = 1.0
    """α: level k has weight (k + 1)^α."""
    normalize: Normalize = "mean_std"
    """Divide by the group's standard deviation, or only subtract its mean."""
    contexts: Contexts = "paper"
    """Groups of early steps, see `context_levels`; `released` also uses weights (k + 2)^α."""
    step_weight: float = 1.0
    """ω, the weight of GiGPO's step-level part."""
    gamma: float = 0.95
    """Discount of the step returns, used again in PPO's temporal differences."""
    gae_lambda: float = 0.95
    """λ of PPO's generalised advantage estimation."""
