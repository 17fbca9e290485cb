"""The agents that ask a model: their settings, and how they play."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym

from hgpo_rllib.agent import Memory
from hgpo_rllib.config import AgentSettings, ConfigError
from hgpo_rllib.environments import find_environment, short_names
from hgpo_rllib.evaluation.scripted import SCRIPTED
from hgpo_rllib.rollout.environments import EnvPool
from hgpo_rllib.rollout.group import Play
from hgpo_rllib.rollout.member import (
    Question,
    Speaker,
    SpeakingPlayer,
    play_episode,
    play_member,
    response_seed,
)
from hgpo_rllib.rollout.trajectory import Trajectory, Trial

KINDS = {
    "hgpo": ("full",),
    "vanilla": ("full",),
    "react": ("react",),
    "reflexion": ("react", "reflexion"),
}
"""The templates of `EnvironmentSpec.prompts` that an agent needs."""
AGENTS = (*KINDS, *SCRIPTED)
REFLEXION_TRIALS = 3
WHOLE_EPISODE = 1000  # turns; prompts that grow too long lose the oldest

MakeSpeaker = Callable[[AgentSettings], Speaker]
"""Puts the questions of an agent with these settings to the model."""


def agent_overrides(agent: str, env_id: str, has_settings: bool) -> list[str]:
    """Settings that make the agent of that name, to be overridden by the user's.

    Args:
        agent: of `AGENTS`.
        env_id: of the environment.
        has_settings: the model comes with settings of a run, which `hgpo` keeps.

    Raises:
        ConfigError: there are no prompts of this agent for the environment.
    """
    if agent in SCRIPTED or (agent == "hgpo" and has_settings):
        return []
    prompts = find_environment(env_id).prompts
    for kind in KINDS[agent]:
        if kind not in prompts:
            raise ConfigError(
                f"--agent {agent}: there are prompts for {', '.join(short_names())} only, not for "
                f"{env_id}: evaluate a run of it with --agent hgpo"
            )
    if agent in ("react", "reflexion"):
        return [
            f"agent.prompt={prompts['react']}",
            f"agent.memory_length={WHOLE_EPISODE}",
            "agent.shorten_prompts=memory",
        ]
    memory = 0 if agent == "vanilla" else 2
    return [f"agent.prompt={prompts['full']}", f"agent.memory_length={memory}"]


def reflection_settings(agent: AgentSettings, env_id: str) -> AgentSettings:
    """The same agent when it looks back on an episode that it lost."""
    changes: dict[str, Any] = {
        "prompt": find_environment(env_id).prompts["reflexion"],
        "memory_length": WHOLE_EPISODE,
        "shorten_prompts": "memory",
    }
    return agent.model_copy(update=changes)


@dataclass(frozen=True)
class Reflexion:
    """Plays a task up to `trials` times, until it is won; learns a lesson in words from each loss.

    An instance is a `Play`.
    """

    speaker: Speaker
    """Plays."""
    reflecting: Speaker
    """Looks back."""
    trials: int

    async def __call__(
        self, env: gym.Env, pool: EnvPool, task: int, group: str, name: str
    ) -> Trajectory:
        """The last episode, with those before it."""
        earlier: list[Trial] = []
        while True:
            key = f"{name}/{len(earlier)}"
            lessons = tuple(trial.reflection.completion for trial in earlier)
            begin = partial(self._player, group=group, key=key, lessons=lessons)
            trajectory = await play_episode(env, pool, task, begin)
            if trajectory.won or len(earlier) + 1 == self.trials:
                return replace(trajectory, earlier=tuple(earlier))
            memory = Memory(trajectory.turns, lessons)
            earlier.append(await self._look_back(trajectory, memory, group, key))

    def _player(
        self, info: Mapping[str, Any], group: str, key: str, lessons: tuple[str, ...]
    ) -> SpeakingPlayer:
        return SpeakingPlayer(self.speaker, info["goal"], group, key, lessons)

    async def _look_back(
        self, trajectory: Trajectory, memory: Memory, group: str, key: str
    ) -> Trial:
        seed = response_seed(f"{group}/{key}", len(memory.turns))
        goal, last = trajectory.info["goal"], trajectory.steps[-1].observation
        question = Question(goal, last, [], memory, seed, group)
        return Trial(trajectory, await self.reflecting.answer(question))


def model_play(
    agent: str, settings: AgentSettings, env_id: str, trials: int, speaker: MakeSpeaker
) -> Play:
    """How an agent of `KINDS` plays."""
    if agent != "reflexion":
        return partial(play_member, speaker=speaker(settings))
    looking_back = speaker(reflection_settings(settings, env_id))
    return Reflexion(speaker(settings), looking_back, trials)
