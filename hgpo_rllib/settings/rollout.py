"""The section `rollout` of a run file."""

from typing import Literal, Self

from pydantic import Field, model_validator

from hgpo_rllib.section import Section


class RolloutSettings(Section):
    """The rollouts of an iteration."""

    groups_per_iteration: int = Field(16, ge=1)
    """Number of groups per iteration. Each group plays one task."""
    group_size: int = Field(8, ge=1)
    """N, the number of episodes in a group. All start from the same initial state. 1: only for
    `reinforce` and the estimators with a critic, which do not compare episodes of a task."""
    strategies: int = Field(4, ge=2)
    """With `agent.strategy_prompt`, the number of strategies in a group. Each is followed by
    group_size / strategies members."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature. Training uses the log-probabilities at this temperature."""
    schedule: Literal["synchronous", "one_step_off", "asynchronous"] = "synchronous"
    """`synchronous`: the update starts after the rollouts of the iteration (as in the papers).
    `one_step_off`: the rollouts of the next iteration run during the update, so some of their
    steps are sampled with weights that are one version old. `asynchronous`: rollouts never stop;
    an iteration takes the groups that finish first."""
    max_staleness: int = Field(1, ge=0)
    """With `schedule=asynchronous`, the maximum number of updates between the weights that sampled
    a response and those that are trained on it. Groups with older responses are discarded.
    0: synchronous. In a run file, unless the learner's `old_logp`, `importance_cap` or
    `importance_mask` is set, a value above 0 sets `old_logp=recomputed` and `importance_cap=2`."""
    max_replaced_groups: int = Field(0, ge=0)
    """Dynamic sampling (DAPO, arXiv 2503.14476): the maximum number of groups per iteration that
    are not used because the returns of all members are equal. Groups of the next tasks are played
    instead. Groups with fewer than two members left are replaced as well. 0: all groups are
    used."""
    curriculum: bool = False
    """Draw tasks of a type (`task_type`) more often if about half of its episodes succeed, and
    less often if nearly all or none do (docs/rollouts.md). false: each task once per epoch."""
    max_concurrent_episodes: int = Field(512, ge=1)
    """Maximum number of concurrent episodes. Each has one environment and at most one pending
    request."""
    env_timeout_s: float = Field(60, gt=0)
    """Timeout of an environment's reset or step, in seconds."""
    gateway_port: int | None = Field(None, ge=1, le=65535)
    """Port of the gateway, an OpenAI-compatible server through which other programs play the
    episodes (docs/gateway.md). null: the run plays them itself."""
    gateway_host: str = "127.0.0.1"
    """Address of the gateway. One that other machines reach needs a key in $HGPO_API_KEY."""
    session_timeout_s: float = Field(600, gt=0)
    """An episode at the gateway has failed after this many seconds without a request."""
    max_attempts: int = Field(2, ge=1)
    """Maximum number of times that an episode is played when its environment fails or times out,
    or the engine rejects its prompt. After that, the group continues without it."""

    @model_validator(mode="after")
    def _replacing_needs_members(self) -> Self:
        if self.max_replaced_groups and self.group_size < 2:
            raise ValueError(
                f"max_replaced_groups={self.max_replaced_groups} compares the members of a group: "
                "set group_size to 2 or more, or max_replaced_groups=0"
            )
        return self
