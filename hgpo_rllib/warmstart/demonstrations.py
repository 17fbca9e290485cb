"""Demonstrations: prompts and responses of a scripted player's episodes."""

import functools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium

import env_wrappers  # noqa: F401  registers the environments with Gymnasium
from env_wrappers.processes import process_pool
from hgpo_rllib.agent import Memory
from hgpo_rllib.agent.templates import load_template, render

Example = tuple[str, str]  # prompt, response
Info = Mapping[str, Any]


class Player(Protocol):
    """Plays one episode from what it sees."""

    def act(self, observation: str, admissible: Sequence[str], last: str | None) -> tuple[str, str]:
        """Return thought and action.

        Args:
            observation: what the last action led to.
            admissible: actions accepted now.
            last: the action that was executed before, None at the start.
        """


class CarelessPlayer(Player, Protocol):
    """A player whose demonstrations contain mistakes, so that a model sees how to recover."""

    def slip(self, admissible: Sequence[str], rng: random.Random) -> str:
        """Return an action that a careless model would take here."""

    def is_worth_learning(self, info: Info) -> bool:
        """Whether to keep an episode that ended with this info."""


MakePlayer = Callable[[Info, random.Random], CarelessPlayer]
"""The player of the episode that an info began."""


@dataclass(frozen=True)
class DemonstrationSpec:
    """What to demonstrate.

    Attributes:
        env_id: Gymnasium id.
        env_options: arguments of the environment, as JSON can hold them.
        make_player: a function of a module, so that worker processes find it.
        task_names: of the tasks with reset seeds 0, 1, …; they seed the demonstrations.
        prompt, memory_length: as in `hgpo_rllib.config.AgentSettings`.
        repeats, noise, seed: `demonstrations`, `action_noise` and `seed` of
            `hgpo_rllib.config.WarmStartSettings`.
    """

    env_id: str
    env_options: dict[str, Any]
    make_player: MakePlayer
    task_names: Sequence[str]
    prompt: str
    memory_length: int
    repeats: int
    noise: float
    seed: int


def response_text(thought: str, action: str) -> str:
    """A response in the agents' format."""
    return f"<think>{thought}</think><action>{action}</action>"


def demonstrate_all(
    spec: DemonstrationSpec,
    workers: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Example]:
    """Demonstrate every task `repeats` times; keep the episodes worth learning from.

    The result does not depend on the number of workers.
    """
    examples: list[Example] = []
    with process_pool(workers) as pool:
        total = len(spec.task_names)
        work = functools.partial(_demonstrate_task, spec)
        for done, batch in enumerate(pool.map(work, range(total), chunksize=4), start=1):
            examples += batch
            on_progress(done, total)
    return examples


def _demonstrate_task(spec: DemonstrationSpec, task: int) -> list[Example]:
    env = _environment(spec.env_id, json.dumps(spec.env_options))
    examples: list[Example] = []
    for repeat in range(spec.repeats):
        rng = random.Random(f"{spec.seed}/{spec.task_names[task]}/{repeat}")
        examples += demonstrate(
            env, task, spec.make_player, spec.prompt, spec.memory_length, spec.noise, rng
        )
    return examples


@functools.lru_cache(maxsize=1)  # once per worker process
def _environment(env_id: str, options: str) -> gymnasium.Env:
    return gymnasium.make(env_id, **json.loads(options))


def demonstrate(
    env: gymnasium.Env,
    task: int,
    make_player: MakePlayer,
    prompt: str,
    memory_length: int,
    noise: float,
    rng: random.Random,
) -> list[Example]:
    """One episode of the task with that reset seed; empty when its player would not show it.

    With chance `noise` a slip is executed instead of the demonstrated action: the model then sees
    how to recover, while the response it learns stays the player's.
    """
    template, memory = load_template(prompt), Memory()
    observation, info = env.reset(seed=task)
    player = make_player(info, rng)
    examples: list[Example] = []
    last: str | None = None
    done = False
    while not done:
        admissible = info["admissible_actions"]
        thought, action = player.act(observation, admissible, last)
        text = render(
            template,
            goal=info["goal"],
            observation=observation,
            admissible_actions=admissible,
            step_count=len(memory.turns),
            history=memory.last(memory_length),
        )
        examples.append((text, response_text(thought, action)))
        last = player.slip(admissible, rng) if rng.random() < noise else action
        memory.add(observation, last)
        observation, _, terminated, truncated, info = env.step(last)
        done = terminated or truncated
    return examples if player.is_worth_learning(info) else []
