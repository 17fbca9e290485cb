"""The games of a split by names that are the same on every machine, and hashes of their data."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

from hgpo_rllib.config import EnvSettings

ALFWORLD = "hgpo/ALFWorld-v0"
WEBSHOP = "hgpo/WebShop-v0"
SHOP_OPTIONS = ("goals", "num_products", "price_seed", "shuffle_seed", "nouns", "search")


@dataclass(frozen=True)
class Games:
    """What a split holds."""

    names: tuple[str, ...]
    """By task number; equal names are equal games where `data_hash` is equal."""
    data_hash: str | None
    """SHA-256 of what the games are made from; None: the environment does not say."""

    def list_hash(self, tasks: Iterable[int]) -> str:
        """SHA-256 of the sorted names of tasks, each once."""
        return digest("\n".join(sorted({self.names[task] for task in tasks})).encode())


def find_games(env: gym.Env, settings: EnvSettings, split: str) -> Games:
    """The games of an environment that was made with these settings."""
    if settings.env_id == ALFWORLD:
        return _alfworld(env.get_wrapper_attr("games"))
    if settings.env_id == WEBSHOP:
        return _webshop(settings, split)
    count = env.get_wrapper_attr("num_tasks")
    return Games(tuple(f"{split}/{task}" for task in range(count)), None)


def _alfworld(files: list[str]) -> Games:
    hashes = (digest(Path(file).read_bytes()) for file in files)
    names = tuple("/".join(Path(file).parts[-3:-1]) for file in files)
    return Games(names, digest("\n".join(hashes).encode()))


def _webshop(settings: EnvSettings, split: str) -> Games:
    from env_wrappers.webshop.goals import goal_range

    shop = shop_of(settings)
    goals = (shop.goals[place] for place in goal_range(split, len(shop.goals)))
    names = tuple(f"{shop.catalogue[goal.product].asin}: {goal.instruction}" for goal in goals)
    return Games(names, shop.catalogue.facts["data_hash"])


def shop_of(settings: EnvSettings) -> Any:
    """The store that WebShop environments with these settings share in this process."""
    from env_wrappers.webshop.shop import open_shop

    options = {name: value for name, value in settings.options.items() if name in SHOP_OPTIONS}
    return open_shop(settings.data, **options)


def digest(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
