"""ALFWorld: generated household tasks on TextWorld, demonstrated by the explorer."""

import functools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from env_wrappers.alfworld import explorer
from env_wrappers.alfworld.check import check_game
from env_wrappers.alfworld.explorer import APPLIANCES, Explorer, goal_of
from env_wrappers.alfworld.games import GAME_FILE, TASK_TYPES, TREE, find_games
from env_wrappers.alfworld.generator import GENERATOR_VERSION, SPLITS, GenerationSpec, generate
from env_wrappers.alfworld.planner import find_plan, recorded_plan
from env_wrappers.errors import DataError
from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments.checks import check_settings
from hgpo_rllib.environments.spec import (
    BuiltInSpec,
    Example,
    Games,
    Info,
    MakeExpert,
    MakeNoisyExpert,
    OraclePlan,
    PlanFollower,
    Progress,
    TaskGenerator,
    digest,
    prompts_of,
)
from hgpo_rllib.settings.env import EnvSettings

DEMONSTRATION_SEED_OFFSET = 1000  # seed offset: demonstrated games are in no other split
PLANNER_SECONDS = 300.0
"""Time limit of the planner for one game. Some kitchens take minutes."""
EXERCISES = 3  # made from one example
_THOUGHT_END = "</think>"
_NAME = re.compile(r"\b([a-z]+) (\d+)\b")
_MOVE = re.compile(r"go to [a-z]+ \d+")
_SEARCH = re.compile(r"<think>(?!desklamp|floorlamp)([a-z]+)(?: \d+)?: (?:find|take) it</think>")
_TAKE = re.compile(r"take (?P<name>(?P<kind>[a-z]+) \d+) from (?P<place>[a-z]+) \d+")


class GameGenerator(TaskGenerator):
    """Generates games with the settings in `config.games`."""

    name = "alfworld-games"
    has_strategies = True
    recipe = (Path(explorer.__file__), Path(__file__))
    function_words = """
a an and are arrive at be can carrying clean close closed cool empty examine
facing find from go have heat hot in inside inventory is it look looking middle move next nothing of
off on open or put quickly room see some step take the then there to toggle turn two under up use
with you your task actions around picked picking
"""

    def data_settings(self, config: RunConfig) -> dict[str, Any]:
        """Return the section `games`."""
        return {"games": config.games.model_dump(), "generator_version": GENERATOR_VERSION}

    def demonstration_settings(self, config: RunConfig) -> dict[str, Any]:
        """Return the section `games` without the numbers of games."""
        shape = config.games.model_dump(exclude=set(SPLITS))
        return {"games": shape, "generator_version": GENERATOR_VERSION}

    def make_data(self, config: RunConfig, path: Path, on_progress: Progress) -> None:
        """Generate the three splits."""
        generate(path, _spec(config), on_progress, workers=None)

    def make_sample(self, config: RunConfig, path: Path) -> None:
        """Write files that are marked as solvable games but cannot be played."""
        spec = _spec(config)
        for split, count in spec.splits.items():
            for task_type in spec.task_types[:count]:
                game = path / TREE / split / task_type / "sample" / GAME_FILE
                game.parent.mkdir(parents=True)
                game.write_text('{"solvable": true}')

    def make_demonstration_data(
        self, config: RunConfig, path: Path, on_progress: Progress
    ) -> Sequence[str]:
        """Generate `warm_start.games` games in the scenes of the train split."""
        splits = {"train": config.warm_start.games}
        spec = _spec(config, splits, DEMONSTRATION_SEED_OFFSET)
        generate(path, spec, on_progress, workers=None)
        return [game.parent.name for game in find_games(path, "train")]

    def expert_factory(self, config: RunConfig) -> MakeNoisyExpert:
        """Return the explorer with `warm_start.random_moves`."""
        return functools.partial(explore, random_moves=config.warm_start.random_moves)

    def augment(self, examples: Sequence[Example], rng: random.Random) -> list[Example]:
        """Return the examples: half ask for another object if possible, and half are renumbered.

        From the demonstrations alone, a small model learns what usually holds: that the object has
        the number 1, and that what can be taken is the object of the goal.
        """
        changed = ask_for_other_objects(examples, rng)
        pairs = zip(examples, changed, strict=True)
        mixed = [other if other and rng.random() < 0.5 else own for own, other in pairs]
        return [renumber(example, rng) if rng.random() < 0.5 else example for example in mixed]

    def exercises(self, examples: Sequence[Example], rng: random.Random) -> list[Example]:
        """Return prompts that ask for other objects; the response is only a thought.

        It says whether the object can be taken. Cloning complete examples hardly teaches that,
        because most of their loss is in other tokens.
        """
        repeats = [ask_for_other_objects(examples, rng) for _ in range(EXERCISES)]
        changed = [example for repeat in repeats for example in repeat if example]
        thoughts = [(p, r.partition(_THOUGHT_END)[0] + _THOUGHT_END) for p, r in changed]
        return [renumber(example, rng) if rng.random() < 0.5 else example for example in thoughts]


class ALFWorld(BuiltInSpec):
    """See `EnvironmentSpec`."""

    prompts = prompts_of("alfworld")
    max_steps = 50
    eval_split = "valid_seen"
    released_shuffles = True
    packages = ("alfworld", "textworld")
    generator = GameGenerator()

    def check(self, config: RunConfig, split: str) -> None:
        """Check the settings and every game file."""
        env = check_settings(config, split)
        trusted = config.env.options.get("trusted", False)
        for game in env.get_wrapper_attr("games"):
            fault = check_game(Path(game), replay=False, trusted=trusted).fault
            if fault:
                raise DataError(f"{game} is broken: {fault}; `hgpo data check alfworld` names all")
        env.close()

    def games(self, env: gym.Env, settings: EnvSettings, split: str) -> Games:
        """Return the games, named by the directories of their files."""
        files = [Path(file) for file in env.get_wrapper_attr("games")]
        hashes = (digest(file.read_bytes()) for file in files)
        names = tuple("/".join(file.parts[-3:-1]) for file in files)
        return Games(names, digest("\n".join(hashes).encode()))

    def oracle(self, settings: EnvSettings) -> Callable[[Info], OraclePlan]:
        """Return the function from an info to the walkthrough in its game file."""
        trusted = settings.options.get("trusted", False)
        return lambda info: _with_thoughts(recorded_plan(Path(info["game"]), trusted))

    def players(self, settings: EnvSettings) -> dict[str, MakeExpert]:
        """Return the explorer, and the planner, which can take minutes for a game."""
        trusted = settings.options.get("trusted", False)

        def follow_plan(info: Info, rng: random.Random) -> PlanFollower:
            plan = find_plan(Path(info["game"]), PLANNER_SECONDS, trusted)
            return PlanFollower(_with_thoughts(plan))

        return {"explorer": explore, "planner": follow_plan}


def _spec(
    config: RunConfig, splits: dict[str, int] | None = None, offset: int = 0
) -> GenerationSpec:
    """Return what to generate: `splits`, or the numbers of games in the section `games`."""
    games = config.games
    return GenerationSpec(
        seed=games.seed + offset,
        splits=splits or {split: getattr(games, split) for split in SPLITS},
        task_types=tuple(games.task_types or TASK_TYPES),
        rooms=tuple(games.rooms),
        max_receptacles=games.max_receptacles,
    )


# --- players -------------------------------------------------------------------------------------


def explore(info: Info, rng: random.Random, random_moves: float = 0.0) -> Explorer:
    """Return the explorer, which searches at random; `goal_of` raises its errors."""
    goal = goal_of(Path(info["game"]))
    return Explorer(goal, info["admissible_actions"], rng, random_moves)


def _with_thoughts(plan: Sequence[str]) -> OraclePlan:
    return OraclePlan(plan, thoughts=thoughts_for(plan))


def thoughts_for(plan: Sequence[str]) -> list[str]:
    """Return one thought per command: the purpose of the next command that handles an object."""
    thoughts: list[str] = []
    thing, purpose, way = "", "", ""
    for command in reversed(plan):
        verb, *words = command.split()
        if verb == "take":
            thing, way = words[0], "find it"
            thoughts.append(f"{thing} {words[1]}: take it")
            continue
        if verb == "use":
            thing, purpose, way = words[0], "use it", "find it"
        elif verb in APPLIANCES:
            thing, purpose, way = words[0], f"{verb} it", f"{verb} it"
        elif verb in ("move", "put"):
            thing, way = words[0], f"put it in {words[3]}"
            purpose = way
        else:
            purpose = way
        thoughts.append(f"{thing}: {purpose}" if thing else "look around")
    return thoughts[::-1]


# --- examples ------------------------------------------------------------------------------------


def renumber(example: Example, rng: random.Random) -> Example:
    """Return a prompt and its response with other numbers of objects, usually from 1 to 9."""
    numbers: dict[str, dict[str, str]] = {}  # new by old, by type

    def new_name(name: re.Match[str]) -> str:
        given = numbers.setdefault(name[1], {})
        if name[2] not in given:
            free = [number for number in "123456789" if number not in given.values()]
            given[name[2]] = rng.choice(free) if free else str(len(given) + 1)
        return f"{name[1]} {given[name[2]]}"

    prompt, response = (_NAME.sub(new_name, text) for text in example)
    return prompt, response


def ask_for_other_objects(
    examples: Sequence[Example], rng: random.Random
) -> Iterator[Example | None]:
    """Yield the examples with another object in the goal; None where that is not possible.

    It is possible where the goal's object is searched for and some object can be taken. In half of
    these examples the new object can be taken, and the response takes it. In the others it is not
    there, and the response goes anywhere; there are none if all known objects can be taken.
    """
    kinds = sorted({take["kind"] for prompt, _ in examples for take in _TAKE.finditer(prompt)})
    for prompt, response in examples:
        lines = 2 if prompt.startswith("Strategy: ") else 1
        asking = prompt.split("\n", lines)[:lines]
        goal = asking[-1]
        _, _, actions = prompt.rpartition("Actions: ")
        moves, offered = _MOVE.findall(actions), list(_TAKE.finditer(actions))
        takes = [take for take in offered if not re.search(rf"\b{take['place']}\b", goal)]
        search = _SEARCH.match(response)
        if not (search and takes and moves and re.search(rf"\b{search[1]}\b", goal)):
            yield None
            continue
        missing = sorted(set(kinds) - {take["kind"] for take in offered})
        if rng.random() < 0.5 or not missing:
            take = rng.choice(takes)
            kind, thought, action = take["kind"], f"{take['name']}: take it", take[0]
        else:
            kind = rng.choice(missing)
            thought, action = f"{kind}: find it", rng.choice(moves)
        for line in asking:
            prompt = prompt.replace(line, re.sub(rf"\b{search[1]}\b", kind, line))
        yield prompt, f"<think>{thought}</think><action>{action}</action>"
