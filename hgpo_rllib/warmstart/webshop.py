"""WebShop: generated catalogues, demonstrated by a scripted shopper."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium

from env_wrappers.webshop import shopper
from env_wrappers.webshop.generator import GENERATOR_VERSION, CatalogueSpec, generate
from env_wrappers.webshop.shopper import Shopper
from hgpo_rllib.config import RunConfig
from hgpo_rllib.warmstart.demonstrations import Info
from hgpo_rllib.warmstart.domain import Domain, Progress

SAMPLE = 400
"""Products; they make 2,700 goals, and the last split begins at 1,500."""
HASTE = 0.4
"""Chance that a customer buys instead of choosing the next option: a habit to be unlearned."""


class WebShopDomain(Domain):
    """Shopping; `config.store` says in which store."""

    name = "webshop-store"
    recipe = (Path(shopper.__file__), Path(__file__))
    function_words = """
a an and are back buy click description features find for from get goal help i in is it less looking
lower me need next now of or order out page pick please price prev results reviews search step task
than that the to total want with
"""

    def data_settings(self, config: RunConfig) -> dict[str, Any]:
        """The section `store`."""
        return {"store": config.store.model_dump(), "generator_version": GENERATOR_VERSION}

    def demonstration_settings(self, config: RunConfig) -> dict[str, Any]:
        """The same."""
        return self.data_settings(config)

    def demonstration_options(self, config: RunConfig) -> dict[str, Any]:
        """Demonstrations are played by the rules of the run."""
        return config.env.options

    def data_size(self, config: RunConfig) -> int:
        """The number of products."""
        return config.store.products

    def make_data(self, config: RunConfig, path: Path, on_progress: Progress) -> None:
        """Generate the catalogue."""
        generate(path, CatalogueSpec(**config.store.model_dump()), on_progress)

    def make_sample(self, config: RunConfig, path: Path) -> None:
        """A catalogue of at most so many products that no split is empty."""
        products = min(config.store.products, SAMPLE)
        spec = CatalogueSpec(**config.store.model_dump() | {"products": products})
        generate(path, spec)

    def make_demonstration_data(
        self, config: RunConfig, path: Path, on_progress: Progress
    ) -> Sequence[str]:
        """The same store: a small model knows brands and identifiers by heart, or not at all.

        The first `warm_start.games` goals of its train split are demonstrated; evaluation has goals
        of its own.
        """
        self.make_data(config, path, on_progress)
        goals = gymnasium.make(config.env.env_id, data=path, **self.demonstration_options(config))
        count = min(config.warm_start.games, goals.get_wrapper_attr("num_tasks"))
        return [str(task) for task in range(count)]

    @staticmethod
    def make_player(info: Info, rng: random.Random) -> "Customer":
        """The shopper with a wish."""
        return Customer(info["goal"], rng)


class Customer:
    """A hasty `Shopper` with a wish, and what a careless model does in its place."""

    def __init__(self, goal: str, rng: random.Random):
        """`goal`: the instruction."""
        self._goal = goal
        self._shopper = Shopper(rng, haste=HASTE)

    def act(self, observation: str, admissible: Sequence[str], last: str | None) -> tuple[str, str]:
        """Thought and action."""
        return self._shopper.act(self._goal, observation, admissible, last)

    def slip(self, admissible: Sequence[str], rng: random.Random) -> str:
        """Any click but the purchase, or, where nothing can be clicked, a search for one word."""
        clicks = [a for a in admissible if a.startswith("click[") and a != "click[buy now]"]
        if any(a.startswith("search[") for a in admissible):
            return f"search[{rng.choice(self._goal.split())}]"
        return rng.choice(clicks)

    def is_worth_learning(self, info: Info) -> bool:
        """Purchases that lack nothing but options."""
        score = info["score_details"]
        return bool(score and score["r_type"] == score["r_att"] == 1 and score["r_price"])
