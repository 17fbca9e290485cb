"""Demonstrations: prompts and responses of episodes that the explorer won."""

import json
import multiprocessing
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from env_wrappers.alfworld.env import ALFWorldEnv
from hgpo_rllib.agent import Memory
from hgpo_rllib.agent.templates import load_template, render
from hgpo_rllib.warmstart.explorer import Explorer, Goal

Example = tuple[str, str]  # prompt, response


def response_text(thought: str, action: str) -> str:
    """A response in the agents' format."""
    return f"<think>{thought}</think><action>{action}</action>"


@dataclass(frozen=True)
class DemonstrationSpec:
    """What to demonstrate; fields as in `hgpo_rllib.config.WarmStartSettings`."""

    data: Path
    prompt: str
    memory_length: int
    max_steps: int
    repeats: int
    noise: float
    seed: int


def demonstrate_all(
    spec: DemonstrationSpec,
    workers: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Example]:
    """Demonstrate every game of the train split `repeats` times; keep the won episodes.

    The result does not depend on the number of workers.
    """
    games = ALFWorldEnv(spec.data, split="train").games
    examples: list[Example] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        for done, batch in enumerate(
            pool.map(partial(_demonstrate_game, spec), games, chunksize=4), start=1
        ):
            examples += batch
            on_progress(done, len(games))
    return examples


def _demonstrate_game(spec: DemonstrationSpec, game: str) -> list[Example]:
    env = _environment(str(spec.data), spec.max_steps)
    examples: list[Example] = []
    for repeat in range(spec.repeats):
        rng = random.Random(f"{spec.seed}/{Path(game).parent.name}/{repeat}")
        examples += demonstrate(env, game, spec.prompt, spec.memory_length, spec.noise, rng)
    return examples


_environments: dict[tuple[str, int], ALFWorldEnv] = {}  # one per worker process


def _environment(data: str, max_steps: int) -> ALFWorldEnv:
    key = (data, max_steps)
    if key not in _environments:
        _environments[key] = ALFWorldEnv(data, split="train", max_steps=max_steps)
    return _environments[key]


def demonstrate(
    env: ALFWorldEnv, game: str, prompt: str, memory_length: int, noise: float, rng: random.Random
) -> list[Example]:
    """One episode; empty when it was not won.

    With chance `noise` a slip is executed instead of the demonstrated action: the model then sees
    how to recover, while the response it learns stays the explorer's.
    """
    template, memory = load_template(prompt), Memory()
    observation, info = env.reset(options={"game": game})
    explorer = Explorer(goal_of(Path(game)), info["admissible_actions"], rng)
    examples, last, done = [], None, False
    while not done:
        admissible = info["admissible_actions"]
        thought, action = explorer.act(observation, admissible, last)
        text = render(
            template,
            goal=info["goal"],
            observation=observation,
            admissible_actions=admissible,
            step_count=len(memory.turns),
            history=memory.last(memory_length),
        )
        examples.append((text, response_text(thought, action)))
        last = _slip(explorer, admissible, rng) if rng.random() < noise else action
        memory.add(observation, last)
        observation, _, terminated, truncated, info = env.step(last)
        done = terminated or truncated
    return examples if info["won"] else []


def goal_of(game: Path) -> Goal:
    """The goal of a game from the traj_data.json beside it."""
    trajectory = json.loads((game.parent / "traj_data.json").read_text())
    return Goal.from_params(trajectory["task_type"], trajectory["pddl_params"])


def _slip(explorer: Explorer, admissible: Sequence[str], rng: random.Random) -> str:
    """A random move, or what a careless model does: take what is not there, go where it is."""
    here = explorer.here or rng.choice(explorer.order)
    moves = [a for a in admissible if a.startswith(("go to ", "open ", "close "))]
    move = rng.choice(moves) if moves else "look"
    take = f"take {explorer.goal.object} {rng.randint(1, 3)} from {here}"
    return rng.choices([move, take, f"go to {here}"], weights=[3, 4, 2])[0]
