"""Play branches from a step of a recorded episode, to estimate values of states and responses.

The environment must have ``snapshot()`` and ``restore(snapshot)``; see
docs/bring_your_own_environment.md.
"""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.agent import Memory, ModelAgentFactory, Turn
from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.rollout.environments import EnvPool
from hgpo_rllib.rollout.group import GroupPlayer, gather, play_episode, take_step
from hgpo_rllib.rollout.scoring import score
from hgpo_rllib.rollout.trajectory import Step, Trajectory
from hgpo_rllib.settings.algorithm import AlgorithmSettings


@dataclass(frozen=True)
class AgentState:
    """State of environment and agent before a step, and the responses to estimate there."""

    task: int
    """Number of the task in its split."""
    turns: list[Turn]
    """The turns that led there."""
    executed: list[Turn] = field(default_factory=list)
    """Responses that were executed there."""
    steps: list[int] = field(default_factory=list)
    """Positions of their steps in the sample of `hgpo bench credit`."""


@dataclass(frozen=True)
class MeanReturn:
    """Mean of the returns of branches."""

    value: float
    variance: float
    """Squared standard error of the mean; 0 if all branches have the same return."""


@dataclass(frozen=True)
class _BranchPoint:
    """State of an episode from which branches continue."""

    snapshot: Any
    observation: str
    info: dict[str, Any]
    turns: list[Turn]


@dataclass(eq=False)
class Brancher:
    """Plays branches of agent states with the same agent, environments and policy as a rollout.

    Use it from one event loop.
    """

    make_agent: ModelAgentFactory
    pool: EnvPool
    """Environments of the tasks' split."""
    settings: AlgorithmSettings
    """Discount and penalty of the returns."""
    branches: int
    """Branches per value V, and per value Q."""
    max_attempts: int
    concurrency: int
    """Maximum number of branches played at the same time."""

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.concurrency)
        self._states = asyncio.Semaphore(max(1, self.concurrency // (2 * self.branches)))

    async def values(self, state: AgentState, name: str) -> tuple[MeanReturn, list[MeanReturn]]:
        """Estimate V of an agent state, and Q of the responses that were executed there.

        V is the mean return of branches that sample the response of this step, Q of branches that
        execute a given one; all later responses are sampled. The return is that of the step as in
        training, with discount and penalty (`hgpo_rllib.rollout.scoring`), up to the step limit.

        `name` is unique and seeds the sampling.

        Raises:
            RunStoppedError: the environment did not repeat its observations, or a branch failed
                in all its attempts.
        """
        async with self._states:  # states in progress, which are lost if the command is stopped
            before = await self._reach(state)
            jobs = [
                self._mean_return(before, turn, f"{name}/q{i}")
                for i, turn in enumerate(state.executed)
            ]
            v, *q = await gather([self._mean_return(before, None, f"{name}/v"), *jobs])
            return v, q

    async def _reach(self, state: AgentState) -> _BranchPoint:
        """Repeat the actions that led to a state."""
        call = self.pool.call
        async with self.pool.lend() as env:
            observation, info = await call(env.reset, seed=state.task)
            for turn in state.turns:
                check_repeated(turn, observation)
                observation, _, _, _, info = await call(env.unwrapped.step, turn.action)
            for turn in state.executed:
                check_repeated(turn, observation)
            snapshot = await call(env.unwrapped.snapshot)  # type: ignore[attr-defined]
        # A copy, since an environment may return the same dictionary again, with other content.
        return _BranchPoint(snapshot, observation, dict(info), state.turns)

    async def _mean_return(self, point: _BranchPoint, first: Turn | None, name: str) -> MeanReturn:
        """Play branches from a point, with the response `first` if given; return their mean."""
        play = partial(self._branch, point, first)
        player = GroupPlayer(play, self.max_attempts, self._slots)
        members = [player.play_member(0, name, index) for index in range(self.branches)]
        played = [trajectory for trajectory in await gather(members) if trajectory is not None]
        if len(played) < self.branches:
            raise RunStoppedError(
                f"{self.branches - len(played)} branches failed in all {self.max_attempts} "
                "attempts (see the warnings above): repeat the command to continue"
            )
        returns = first_returns(played, self.settings)
        return MeanReturn(float(returns.mean()), float(returns.var(ddof=1) / len(returns)))

    async def _branch(
        self, point: _BranchPoint, first: Turn | None, task: int, group: str, name: str
    ) -> Trajectory:
        """Play one branch to its end; see `hgpo_rllib.rollout.group.PlayMember`."""
        call = self.pool.call
        async with self.pool.lend() as wrapped:
            # Not through wrappers: one of an environment that was never reset would refuse to step.
            env: Any = wrapped.unwrapped
            await call(env.restore, point.snapshot)
            observation, info, turns = point.observation, point.info, list(point.turns)
            steps: list[Step] = []
            if first is not None:
                steps = [Step(first, *await call(take_step, env, first.action), 0.0)]
                observation, info = steps[0].observation, steps[0].info
                turns.append(first)
            if not steps or not (steps[0].terminated or steps[0].truncated):
                agent = self.make_agent(info, group, name, Memory(turns))
                steps += (await play_episode(env, self.pool, agent, observation, info)).steps
        return Trajectory(point.info, steps)


def check_repeated(turn: Turn, observation: str) -> None:
    """Raise RunStoppedError if the observation is not the one of the turn."""
    if turn.observation != observation:
        raise RunStoppedError(
            "the environment does not repeat its observations after reset with the same seed "
            f"and the same actions: {turn.observation[:60]!r} became {observation[:60]!r}; "
            "make it deterministic"
        )


def first_returns(
    trajectories: list[Trajectory], settings: AlgorithmSettings
) -> NDArray[np.float64]:
    """Return the return of the first step of each trajectory, shape ``(trajectories,)``."""
    steps = score(trajectories, settings).steps
    return steps.step_return[steps.time == 0]
