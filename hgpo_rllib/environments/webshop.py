"""WebShop: shopping in generated or original stores, demonstrated by a scripted shopper."""

import functools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from env_wrappers.webshop import players, shopper
from env_wrappers.webshop.generator import GENERATOR_VERSION, generate
from env_wrappers.webshop.goals import split_goals
from env_wrappers.webshop.players import PLAYERS, NoisyShopper
from env_wrappers.webshop.shop import Shop, open_shop
from env_wrappers.webshop.shopper import NotFoundError, Shopper, oracle_actions
from env_wrappers.webshop.synthetic_products import CatalogueSpec
from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments.spec import (
    BuiltInSpec,
    Games,
    Info,
    MakeExpert,
    MakeNoisyExpert,
    OraclePlan,
    Progress,
    TaskGenerator,
    prompts_of,
)
from hgpo_rllib.settings.env import EnvSettings

SAMPLE = 2000
"""Number of products; with `store.human=1` they have 1,800 human goals, and the last split starts
at goal 1,500."""
SHOP_OPTIONS = ("goals", "num_products", "price_seed", "shuffle_seed", "nouns")


class StoreGenerator(TaskGenerator):
    """Generates a store with the settings in `config.store`."""

    name = "webshop-store"
    has_strategies = True
    recipe = (Path(shopper.__file__), Path(players.__file__))
    function_words = """
a an and are back buy click description features find for from get goal help i in is it less looking
lower me need next now of or order out page pick please price prev results reviews search step task
than that the to total want with
"""

    def data_settings(self, config: RunConfig) -> dict[str, Any]:
        """Return the section `store`."""
        return {"store": config.store.model_dump(), "generator_version": GENERATOR_VERSION}

    def demonstration_options(self, config: RunConfig) -> dict[str, Any]:
        """Return the run's environment options and train split."""
        return config.env.options | {"split": config.env.train_split}

    def make_data(self, config: RunConfig, path: Path, on_progress: Progress) -> None:
        """Generate the catalogue."""
        generate(path, CatalogueSpec(**config.store.model_dump()), on_progress)

    def make_sample(self, config: RunConfig, path: Path) -> None:
        """Generate a catalogue of at most `SAMPLE` products, enough that no split is empty."""
        store = config.store
        products = min(store.products, SAMPLE)
        human = min(1.0, store.human * store.products / products)  # as many goals, if possible
        spec = CatalogueSpec(**store.model_dump() | {"products": products, "human": human})
        generate(path, spec)

    def make_demonstration_data(
        self, config: RunConfig, path: Path, on_progress: Progress
    ) -> Sequence[str]:
        """Generate the same store: a small model has to memorize brands and identifiers.

        The first `warm_start.games` goals of its train split are demonstrated; evaluation uses
        other goals.
        """
        self.make_data(config, path, on_progress)
        env = gym.make(config.env.env_id, data=path, **self.demonstration_options(config))
        count = min(config.warm_start.games, env.get_wrapper_attr("num_tasks"))
        return [str(task) for task in range(count)]

    def expert_factory(self, config: RunConfig) -> MakeNoisyExpert:
        """Return the shopper with `warm_start.random_moves`."""
        return functools.partial(_noisy_shopper, mistake_rate=config.warm_start.random_moves)


def _noisy_shopper(info: Info, rng: random.Random, mistake_rate: float) -> NoisyShopper:
    return NoisyShopper(info["goal"], rng, mistake_rate)


class WebShop(BuiltInSpec):
    """See `EnvironmentSpec`."""

    prompts = prompts_of("webshop")
    max_steps = 15
    eval_split = "test"
    packages = ("en_core_web_sm",)  # tags the nouns of titles, if it is installed
    generator = StoreGenerator()

    def games(self, env: gym.Env, settings: EnvSettings, split: str) -> Games:
        """Return the games, named by product and instruction."""
        shop = _shop(settings)
        goals = (shop.goals[place] for place in split_goals(shop.goals, split))
        names = tuple(f"{shop.catalogue[goal.product].asin}: {goal.instruction}" for goal in goals)
        return Games(names, shop.catalogue.facts["data_hash"])

    def oracle(self, settings: EnvSettings) -> Callable[[Info], OraclePlan]:
        """Return the function to a plan that finds and buys the product of a goal."""
        return functools.partial(_purchase, settings=settings)

    def players(self, settings: EnvSettings) -> dict[str, MakeExpert]:
        """Return the shoppers to compare with."""

        def player(make: Callable[[str, random.Random], Shopper]) -> MakeExpert:
            return lambda info, rng: make(info["goal"], rng)

        return {name: player(make) for name, make in PLAYERS.items()}


def _purchase(info: Info, settings: EnvSettings) -> OraclePlan:
    """Return a plan with searches as fallback: some goals of the original data are unreachable."""
    shop = _shop(settings)
    split, place = info["game"].split("/")
    goal = shop.goals[split_goals(shop.goals, split)[int(place)]]
    search = f"search[{info['goal']}]"
    try:
        actions = oracle_actions(goal, shop.catalogue[goal.product], shop.catalogue)
        return OraclePlan(actions, search, "the plan does not buy the product")
    except NotFoundError as error:
        return OraclePlan([], search, str(error))


def _shop(settings: EnvSettings) -> Shop:
    """Return the store that environments with these settings share in this process."""
    options = {name: value for name, value in settings.options.items() if name in SHOP_OPTIONS}
    return open_shop(settings.data, **options)
