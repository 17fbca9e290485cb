"""Demonstrations: prompts and responses of a scripted expert's episodes."""

import functools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import gymnasium

import env_wrappers  # noqa: F401  registers the environments with Gymnasium
from env_wrappers.processes import process_pool
from hgpo_rllib.agent import Memory, TextRenderer
from hgpo_rllib.config import AgentSettings
from hgpo_rllib.environments.spec import Example, Expert, Info, MakeExpert, Strategist


@dataclass(frozen=True)
class DemonstrationSpec:
    """Settings of demonstrations.

    Attributes:
        env_id: Gymnasium id.
        env_options: arguments of the environment; must be serialisable as JSON.
        make_expert: a module-level function, so that worker processes can import it.
        task_names: names of tasks by their reset seeds; they seed the demonstrations.
        prompt, memory_length, strategy_prompt, subgoals: as in `hgpo_rllib.config.AgentSettings`.
        repeats, noise, seed: `demonstrations`, `action_noise` and `seed` of
            `hgpo_rllib.settings.generated.WarmStartSettings`.
    """

    env_id: str
    env_options: dict[str, Any]
    make_expert: MakeExpert
    task_names: Mapping[int, str]
    prompt: str
    memory_length: int
    repeats: int
    noise: float
    seed: int
    strategy_prompt: str | None = None
    subgoals: bool = False


def response_text(thought: str, action: str) -> str:
    """Return a response in the agents' format."""
    return f"<think>{thought}</think><action>{action}</action>"


def subgoal_text(current: str, subgoal: str, action: str) -> str:
    """Return a response in the format of agents with sub-goals, whose sub-goal is `current`."""
    switch = "KEEP" if subgoal == current else "SWITCH"
    return f"<switch>{switch}</switch><subgoal>{subgoal}</subgoal><action>{action}</action>"


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
        batches = pool.map(work, spec.task_names, chunksize=4)
        for done, batch in enumerate(batches, start=1):
            examples += batch
            on_progress(done, total)
    return examples


def _demonstrate_task(spec: DemonstrationSpec, task: int) -> list[Example]:
    env = _environment(spec.env_id, json.dumps(spec.env_options))
    examples: list[Example] = []
    for repeat in range(spec.repeats):
        rng = random.Random(f"{spec.seed}/{spec.task_names[task]}/{repeat}")
        examples += demonstrate(
            env,
            task,
            spec.make_expert,
            spec.prompt,
            spec.memory_length,
            spec.noise,
            rng,
            spec.strategy_prompt,
            spec.subgoals,
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
    strategy_prompt: str | None = None,
    subgoals: bool = False,
) -> list[Example]:
    """Demonstrate one episode of a task; return no examples if it is not worth learning from.

    With `strategy_prompt`, the first example is the strategy of the expert, a `Strategist`.

    With probability `noise`, a perturbed action is executed, so that the model sees how to
    recover. The response that it learns is still the expert's.
    """
    started = env.reset(seed=task)
    expert = make_expert(started[1], rng)
    strategy, first = "", list[Example]()
    if strategy_prompt is not None:
        strategy = cast(Strategist, expert).strategy()
        asking = TextRenderer(AgentSettings(prompt=strategy_prompt))
        first = [(asking.message(started[1]["goal"], started[0], [], 0, []), strategy)]

    def perturb(admissible: Sequence[str]) -> str | None:
        return expert.perturb(admissible, rng) if rng.random() < noise else None

    renderer = TextRenderer(
        AgentSettings(prompt=prompt, memory_length=memory_length, subgoals=subgoals)
    )
    examples, info = play(env, started, expert, renderer, perturb, strategy)
    return first + examples if expert.is_worth_learning(info) else []


def play(
    env: gymnasium.Env,
    started: tuple[str, dict[str, Any]],
    expert: Expert,
    renderer: TextRenderer,
    perturb: Callable[[Sequence[str]], str | None] = lambda admissible: None,
    strategy: str = "",
) -> tuple[list[Example], Info]:
    """Play an episode to its end; return its examples and the last info.

    Args:
        env: the environment.
        started: observation and info of its reset.
        expert: chooses the actions.
        renderer: renders the messages to the model.
        perturb: maps the admissible actions to the one to execute, or None for the expert's.
        strategy: the expert's, shown in all prompts.
    """
    memory = Memory(strategy=strategy)
    observation, info = started
    examples: list[Example] = []
    last: str | None = None
    done = False
    while not done:
        admissible = info["admissible_actions"]
        thought, action = expert.act(observation, admissible, last)
        given = info["goal"], observation, admissible, len(memory.turns)
        if renderer.is_conversation and memory.turns:
            text = renderer.follow_up_message(*given)
        else:
            turns = memory.last(renderer.memory_length)
            text = renderer.message(*given, turns, *renderer.further(memory))
        response = response_text(thought, action)
        if renderer.has_subgoals:
            response = subgoal_text(memory.subgoal, thought, action)
        examples.append((text, response))
        last = perturb(admissible) or action
        memory.add(observation, last, response)
        observation, _, terminated, truncated, info = env.step(last)
        done = terminated or truncated
    return examples, info
