"""Demonstrations: prompts and responses of a scripted expert's episodes."""

import functools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

import env_wrappers  # noqa: F401  registers the environments with Gymnasium
from env_wrappers.processes import process_pool
from hgpo_rllib.agent import Memory, TextRenderer
from hgpo_rllib.environments.spec import Expert, Info, NoisyExpert

Example = tuple[str, str]  # prompt, response


MakeExpert = Callable[[Info, random.Random], NoisyExpert]
"""Makes the expert for the episode that an info began."""


@dataclass(frozen=True)
class DemonstrationSpec:
    """What to demonstrate.

    Attributes:
        env_id: Gymnasium id.
        env_options: arguments of the environment, as JSON can hold them.
        make_expert: a function of a module, so that worker processes find it.
        task_names: of the tasks with reset seeds 0, 1, …; they seed the demonstrations.
        prompt, memory_length: as in `hgpo_rllib.config.AgentSettings`.
        repeats, noise, seed: `demonstrations`, `action_noise` and `seed` of
            `hgpo_rllib.settings.generated.WarmStartSettings`.
    """

    env_id: str
    env_options: dict[str, Any]
    make_expert: MakeExpert
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
            env, task, spec.make_expert, spec.prompt, spec.memory_length, spec.noise, rng
        )
    return examples


@functools.lru_cache(maxsize=1)  # once per worker process
def _environment(env_id: str, options: str) -> gymnasium.Env:
    return gymnasium.make(env_id, **json.loads(options))


def demonstrate(
    env: gymnasium.Env,
    task: int,
    make_expert: MakeExpert,
    prompt: str,
    memory_length: int,
    noise: float,
    rng: random.Random,
) -> list[Example]:
    """One episode of the task with that reset seed; empty when it is not worth learning from.

    With probability `noise` the executed action is a perturbed one: the model then sees how to
    recover, while the response that it learns stays the expert's.
    """
    started = env.reset(seed=task)
    expert = make_expert(started[1], rng)

    def perturb(admissible: Sequence[str]) -> str | None:
        return expert.perturb(admissible, rng) if rng.random() < noise else None

    examples, info = play(env, started, expert, prompt, memory_length, perturb)
    return examples if expert.is_worth_learning(info) else []


def play(
    env: gymnasium.Env,
    started: tuple[str, dict[str, Any]],
    expert: Expert,
    prompt: str,
    memory_length: int,
    perturb: Callable[[Sequence[str]], str | None] = lambda admissible: None,
) -> tuple[list[Example], Info]:
    """Play an episode to its end; returns its examples and the last info.

    Args:
        env: the environment.
        started: what its reset returned.
        expert: plays.
        prompt, memory_length: as in `DemonstrationSpec`.
        perturb: from the admissible actions to the one that is executed; None: the expert's.
    """
    renderer, memory = TextRenderer(prompt, memory_length), Memory()
    observation, info = started
    examples: list[Example] = []
    last: str | None = None
    done = False
    while not done:
        admissible = info["admissible_actions"]
        thought, action = expert.act(observation, admissible, last)
        text = renderer.message(
            goal=info["goal"],
            observation=observation,
            admissible_actions=admissible,
            step_count=len(memory.turns),
            history=memory.last(memory_length),
        )
        examples.append((text, response_text(thought, action)))
        last = perturb(admissible) or action
        memory.add(observation, last)
        observation, _, terminated, truncated, info = env.step(last)
        done = terminated or truncated
    return examples, info
