"""The section `algorithm` of a run file, and what it needs of other sections."""

from dataclasses import fields
from typing import Literal

from pydantic import Field, field_validator

from hgpo_rllib.advantages import EstimatorSettings, find_estimator
from hgpo_rllib.advantages.estimators import (
    HIPER,
    NEEDS_CRITIC,
    NEEDS_TOKEN_VALUES,
    STRATA,
    STRATEGY,
    TEACHERS,
    WITHOUT_GROUPS,
)
from hgpo_rllib.advantages.groups import Contexts, Normalize
from hgpo_rllib.section import Section
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.learner import LearnerSettings
from hgpo_rllib.settings.rollout import RolloutSettings

_ESTIMATOR = EstimatorSettings()


class AlgorithmSettings(Section):
    """Returns and advantages. The docstring of each estimator names the settings that it reads."""

    estimator: str = "hgpo"
    """Name of an advantage estimator in hgpo_rllib/advantages/estimators.py."""
    role_estimators: dict[str, str] = {}
    """Advantage estimators by role, such as `{planner: grpo}`, for agents with several roles or
    with spans in their responses (docs/advantages.md). All other roles use `estimator`."""
    anchor: Literal["observation", "state"] = "observation"
    """What identifies a state: the text of the observation (as in the paper), or the
    environment's hash of the true state (`info["state_hash"]`)."""
    context_length: int = Field(_ESTIMATOR.context_length, ge=0)
    """K. Level k = 0..K groups steps with the same state and the same k previous states."""
    weight_alpha: float = Field(_ESTIMATOR.weight_alpha, ge=0)
    """Alpha. Level k has the weight (k + 1)^alpha, see also `contexts`; 0: all levels have the same
    weight."""
    normalize: Normalize = _ESTIMATOR.normalize
    """Subtract the mean of the group and divide by its standard deviation (`mean_std`), or only
    subtract the mean (`mean`)."""
    contexts: Contexts = _ESTIMATOR.contexts
    """Levels of steps with fewer than k predecessors: `paper` compares their whole prefix;
    `released` gives them no level k and weights level k by (k + 2)^alpha."""
    step_weight: float = Field(_ESTIMATOR.step_weight, ge=0)
    """Omega, the weight of the step-level advantage in GiGPO, GraphGPO, G2PO and HCAPO."""
    gamma: float = Field(_ESTIMATOR.gamma, gt=0, le=1)
    """Discount factor."""
    gae_lambda: float = Field(_ESTIMATOR.gae_lambda, ge=0, le=1)
    """Lambda of generalized advantage estimation over steps."""
    segment_lambda: float = Field(_ESTIMATOR.segment_lambda, ge=0, le=1)
    """Lambda of HiPER's generalized advantage estimation over segments."""
    keep_penalty: float = Field(0.0, ge=0)
    """HiPER's penalty of keeping the sub-goal: each step that keeps it loses this value divided by
    the number of steps of the episode (released code: 0.3 for ALFWorld, 3.5 for WebShop)."""
    token_weight: float = Field(_ESTIMATOR.token_weight, ge=0)
    """Alpha, VETTA's weight of the token-level advantage (paper: 1 for ALFWorld, 3 for
    WebShop)."""
    strategy_share: float = Field(_ESTIMATOR.strategy_share, gt=0, le=1)
    """StraTA's delta: the value of a strategy is the mean return of this share of its members,
    the best ones."""
    distance_discount: float = Field(_ESTIMATOR.distance_discount, gt=0, lt=1)
    """GraphGPO's discount for each step of the distance to success (released code: 0.1 for
    ALFWorld, 0.2 for WebShop)."""
    hindsight_smoothing: float = Field(_ESTIMATOR.hindsight_smoothing, ge=0, le=1)
    """HCAPO's weight of the next step's hindsight value in that of a step (the paper's variant
    with smoothing: 0.5). 0: no smoothing."""
    invalid_penalty: float = Field(0.1, ge=0)
    """Penalty subtracted from the return of an invalid step, after discounting."""

    @field_validator("estimator", "role_estimators")
    @classmethod
    def _known(cls, given: str | dict[str, str]) -> str | dict[str, str]:
        for name in [given] if isinstance(given, str) else given.values():
            find_estimator(name)
        return given

    def estimators(self) -> dict[str, str]:
        """Return all estimators by their settings, ``section.key=value``."""
        roles = {f"role_estimators={{{k}: {v}}}": v for k, v in self.role_estimators.items()}
        named = {f"estimator={self.estimator}": self.estimator} | roles
        return {f"algorithm.{setting}": name for setting, name in named.items()}

    def estimator_settings(self) -> EstimatorSettings:
        """Return the settings that estimators read."""
        return EstimatorSettings(
            **{field.name: getattr(self, field.name) for field in fields(EstimatorSettings)}
        )


def check_critic(algorithm: AlgorithmSettings, learner: LearnerSettings) -> None:
    """Raise a ValueError for a critic without an estimator that reads values, or vice versa."""
    named = algorithm.estimators()
    reads_values = [setting for setting, name in named.items() if name in NEEDS_CRITIC]
    if reads_values and learner.critic == "none":
        raise ValueError(
            f"{reads_values[0]} needs a critic: set learner.critic=head or learner.critic=separate"
        )
    by_role = algorithm.role_estimators.values()
    if by_role and (per_token := {*NEEDS_TOKEN_VALUES, "gear"}.intersection(named.values())):
        raise ValueError(
            f"algorithm.role_estimators: {min(per_token)} has advantages of tokens, not of roles: "
            "set algorithm.role_estimators={} or other estimators"
        )
    if with_teacher := TEACHERS.keys() & by_role:
        raise ValueError(
            f"algorithm.role_estimators: {min(with_teacher)} reads a teacher, which only "
            "algorithm.estimator has: choose another estimator for the role"
        )
    if not reads_values and learner.critic != "none":
        raise ValueError(
            f"learner.critic={learner.critic} has values that algorithm.estimator="
            f"{algorithm.estimator} does not read: set learner.critic=none or "
            "algorithm.estimator=" + " or ".join(NEEDS_CRITIC)
        )


def check_group_size(algorithm: AlgorithmSettings, group_size: int) -> None:
    """Raise a ValueError for groups of one where the estimator compares members of a group."""
    named = algorithm.estimators().items()
    if group_size < 2 and (comparing := [s for s, name in named if name not in WITHOUT_GROUPS]):
        raise ValueError(
            f"rollout.group_size=1 leaves {comparing[0]} nothing to compare an episode with: set "
            "rollout.group_size to 2 or more, or the estimator to " + " or ".join(WITHOUT_GROUPS)
        )


def check_strategies(
    agent: AgentSettings, algorithm: AlgorithmSettings, rollout: RolloutSettings
) -> None:
    """Raise a ValueError for strategies without an estimator of theirs, or vice versa."""
    others = dict(algorithm.role_estimators)
    strategy_estimator = others.pop(STRATEGY, None)
    if agent.strategy_prompt is None:
        if STRATA in (algorithm.estimator, strategy_estimator, *others.values()):
            raise ValueError(
                f"algorithm: {STRATA} compares strategies, and the agent writes none: set "
                "agent.strategy_prompt=strategy_full, or another estimator"
            )
        return
    if strategy_estimator != STRATA or STRATA in (algorithm.estimator, *others.values()):
        raise ValueError(
            f"agent.strategy_prompt needs algorithm.role_estimators={{{STRATEGY}: {STRATA}}}, and "
            "another algorithm.estimator for the actions, such as grpo or hgpo"
        )
    members, rest = divmod(rollout.group_size, rollout.strategies)
    if rest or members < 2:
        raise ValueError(
            f"rollout.group_size={rollout.group_size} cannot be divided among "
            f"rollout.strategies={rollout.strategies}, with two members or more for each: set "
            f"rollout.group_size={2 * rollout.strategies} or another multiple"
        )


def check_subgoals(agent: AgentSettings, algorithm: AlgorithmSettings) -> None:
    """Raise a ValueError for settings of sub-goals that do not fit together."""
    if not agent.subgoals:
        if algorithm.estimator == HIPER:
            raise ValueError(
                f"algorithm.estimator={HIPER} needs responses with sub-goals: set agent.subgoals="
                "true and agent.prompt=subgoals_full"
            )
        return
    for possible, change in (
        (agent.context == "window", "agent.context=window"),
        (agent.strategy_prompt is None, "agent.strategy_prompt=null"),
    ):
        if not possible:
            raise ValueError(f"agent.subgoals=true needs {change}")
    if algorithm.estimator in {*NEEDS_TOKEN_VALUES, "gear"} - {HIPER}:
        raise ValueError(
            f"algorithm.estimator={algorithm.estimator} has advantages of tokens, but with "
            "agent.subgoals=true blocks have advantages of their own: set "
            f"algorithm.estimator={HIPER} or another one"
        )
