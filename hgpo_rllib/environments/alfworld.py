"""ALFWorld: generated household tasks on TextWorld, demonstrated by the explorer."""

import functools
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from env_wrappers.alfworld import explorer
from env_wrappers.alfworld.check import check_game
from env_wrappers.alfworld.explorer import Explorer, goal_of
from env_wrappers.alfworld.games import GAME_FILE, TASK_TYPES, TREE, find_games
from env_wrappers.alfworld.generator import GENERATOR_VERSION, SPLITS, GenerationSpec, generate
from env_wrappers.errors import DataError
from hgpo_rllib.config import EnvSettings, RunConfig
from hgpo_rllib.environments import alfworld_examples
from hgpo_rllib.environments.alfworld_experts import explore, follow_plan, recorded
from hgpo_rllib.environments.checks import check_settings
from hgpo_rllib.environments.spec import (
    EnvironmentSpec,
    Games,
    Info,
    MakeExpert,
    MakePlayer,
    OraclePlan,
    Progress,
    TaskGenerator,
    digest,
)

DEMONSTRATION_SEED_OFFSET = 1000  # seed offset: demonstrated games are in no other split


class GameGenerator(TaskGenerator):
    """Generates games with the settings in `config.games`."""

    name = "alfworld-games"
    recipe = (Path(explorer.__file__), Path(alfworld_examples.__file__))
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

    def data_size(self, config: RunConfig) -> int:
        """Return the number of games."""
        return sum(_spec(config).splits.values())

    def make_data(self, config: RunConfig, path: Path, on_progress: Progress) -> None:
        """Generate the three splits."""
        generate(path, _spec(config), on_progress, workers=os.cpu_count() or 1)

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
        generate(path, spec, on_progress, workers=os.cpu_count() or 1)
        return [game.parent.name for game in find_games(path, "train")]

    @staticmethod
    def make_expert(info: Info, rng: random.Random, random_moves: float = 0.0) -> Explorer:
        """Return the explorer of a game."""
        goal = goal_of(Path(info["game"]))
        return Explorer(goal, info["admissible_actions"], rng, random_moves)

    def expert_factory(self, config: RunConfig) -> MakeExpert:
        """Return `make_expert` with `warm_start.random_moves`."""
        return functools.partial(self.make_expert, random_moves=config.warm_start.random_moves)

    augment = staticmethod(alfworld_examples.augment)
    exercises = staticmethod(alfworld_examples.exercises)


class ALFWorld(EnvironmentSpec):
    """See `EnvironmentSpec`."""

    prompts = {  # noqa: RUF012
        "full": "alfworld_full",
        "react": "alfworld_react",
        "reflexion": "alfworld_reflexion",
    }
    max_steps = 50
    eval_split = "valid_seen"
    parity_shuffles = True
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
        return functools.partial(recorded, trusted=settings.options.get("trusted", False))

    def players(self, settings: EnvSettings) -> dict[str, MakePlayer]:
        """Return the explorer, and the planner, which can take minutes for a game."""
        trusted = settings.options.get("trusted", False)
        return {"explorer": explore, "planner": functools.partial(follow_plan, trusted=trusted)}


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
