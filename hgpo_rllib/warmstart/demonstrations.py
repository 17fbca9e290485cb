"""Demonstrations: prompts and responses of a scripted expert's episodes."""

import functools
import json
import random
from collections.abc import Callable, Sequence
from typing import Any, cast

import gymnasium

import env_wrappers  # noqa: F401  registers the environments with Gymnasium
from hgpo_rllib.agent import Memory, TextRenderer
from hgpo_rllib.environments.spec import Example, Expert, Info, MakeNoisyExpert, Strategist
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.generated import WarmStartSettings


def subgoal_text(current: str, subgoal: str, action: str) -> str:
    """Return a response in the format of agents with sub-goals, whose sub-goal is `current`."""
    switch = "KEEP" if subgoal == current else "SWITCH"
    return f"<switch>{switch}</switch><subgoal>{subgoal}</subgoal><action>{action}</action>"


def demonstrate_task(
    env_id: str,
    env_options: str,
    make_expert: MakeNoisyExpert,
    agent: AgentSettings,
    settings: WarmStartSettings,
    named_task: tuple[int, str],
) -> list[Example]:
    """Demonstrate a task several times, in any process; keep the episodes worth learning from.

    Args:
        env_id: Gymnasium id.
        env_options: arguments of the environment, in JSON.
        make_expert: a module-level function, so that worker processes can import it.
        agent: see `demonstrate`.
        settings: number of demonstrations, noise and seed.
        named_task: reset seed of the task, and its name, which seeds the demonstrations.
    """
    env, (task, name) = cached_environment(env_id, env_options), named_task
    examples: list[Example] = []
    for repeat in range(settings.demonstrations):
        rng = random.Random(f"{settings.seed}/{name}/{repeat}")
        examples += demonstrate(env, task, make_expert, agent, settings.action_noise, rng)
    return examples


@functools.lru_cache(maxsize=1)
def cached_environment(env_id: str, options: str) -> gymnasium.Env:
    """Return the environment that all demonstrations of a process use."""
    return gymnasium.make(env_id, disable_env_checker=True, **json.loads(options))


def demonstrate(
    env: gymnasium.Env,
    task: int,
    make_expert: MakeNoisyExpert,
    agent: AgentSettings,
    noise: float,
    rng: random.Random,
) -> list[Example]:
    """Demonstrate one episode of a task; return no examples if it is not worth learning from.

    With `agent.strategy_prompt`, the first example is the strategy of the expert, a `Strategist`.
    Prompts are those of `agent.context=window`, with which conversations begin too.

    With probability `noise`, a perturbed action is executed, so that the model sees how to
    recover. The response that it learns is still the expert's.
    """
    observation, info = started = env.reset(seed=task)
    expert = make_expert(info, rng)
    strategy, first = "", list[Example]()
    if agent.strategy_prompt is not None:
        strategy = cast(Strategist, expert).strategy()
        asking = TextRenderer(AgentSettings(prompt=agent.strategy_prompt))
        first = [(asking.message(info["goal"], observation, [], 0, []), strategy)]

    def perturb(admissible: Sequence[str]) -> str | None:
        return expert.perturb(admissible, rng) if rng.random() < noise else None

    renderer = TextRenderer(agent.model_copy(update={"context": "window"}))
    examples, last_info = play(env, started, expert, renderer, perturb, strategy)
    return first + examples if expert.is_worth_learning(last_info) else []


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
            text = renderer.message(*given, turns, memory)
        if renderer.has_subgoals:
            response = subgoal_text(memory.subgoal, thought, action)
        else:
            response = f"<think>{thought}</think><action>{action}</action>"
        examples.append((text, response))
        last = perturb(admissible) or action
        memory.add(observation, last, response)
        observation, _, terminated, truncated, info = env.step(last)
        done = terminated or truncated
    return examples, info
