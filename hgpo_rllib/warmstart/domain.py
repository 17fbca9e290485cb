"""What making data and demonstrations needs to know of an environment."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hgpo_rllib.config import ConfigError, RunConfig
from hgpo_rllib.warmstart.demonstrations import CarelessPlayer, Info

Progress = Callable[[int, int], None]
DEMONSTRATION_SEED_OFFSET = 1000  # of generators: tasks of demonstrations are met nowhere else


class Domain(ABC):
    """One environment that can be played without data from elsewhere.

    Attributes:
        name: part of the names of what is kept.
        recipe: source files that shape the demonstrations, beside those of all domains.
        function_words: frequent words without meaning of their own, which the pocket model's
            tokenizer may merge.
    """

    name: str
    recipe: tuple[Path, ...]
    function_words: str

    @abstractmethod
    def data_settings(self, config: RunConfig) -> dict[str, Any]:
        """What the data depend on, the generator's version included."""

    @abstractmethod
    def demonstration_settings(self, config: RunConfig) -> dict[str, Any]:
        """The part of `data_settings` that the data of demonstrations depend on."""

    def demonstration_options(self, config: RunConfig) -> dict[str, Any]:
        """Arguments of the environment that demonstrations are played in, beside `data`."""
        return {}

    @abstractmethod
    def data_size(self, config: RunConfig) -> int:
        """How much `make_data` makes, in the unit of its progress."""

    @abstractmethod
    def make_data(self, config: RunConfig, path: Path, on_progress: Progress) -> None:
        """Write the data of training and evaluation."""

    @abstractmethod
    def make_sample(self, config: RunConfig, path: Path) -> None:
        """Write data with the splits and kinds of tasks of `make_data`, in a moment.

        They are good for making environments, to check the settings, and not always for playing.
        """

    @abstractmethod
    def make_demonstration_data(
        self, config: RunConfig, path: Path, on_progress: Progress
    ) -> Sequence[str]:
        """Write data for demonstrations alone; returns the names of the train split's tasks."""

    @staticmethod
    @abstractmethod
    def make_player(info: Info, rng: random.Random) -> CarelessPlayer:
        """The scripted player of the episode that an info began."""


HAVE_DOMAINS = ("hgpo/ALFWorld-v0", "hgpo/WebShop-v0")
"""Ids of environments for which data and a pocket model can be made."""


def find_domain(env_id: str) -> Domain:
    """The domain of a Gymnasium id.

    Raises:
        ConfigError: there is none: the environment needs a model of its own.
    """
    from hgpo_rllib.warmstart.alfworld import ALFWorldDomain
    from hgpo_rllib.warmstart.webshop import WebShopDomain

    if env_id not in HAVE_DOMAINS:
        raise ConfigError(
            f"model.model_path: a pocket model is made for {' and '.join(HAVE_DOMAINS)} alone, "
            f"not for {env_id}: name a model"
        )
    domains: tuple[type[Domain], ...] = (ALFWorldDomain, WebShopDomain)
    return dict(zip(HAVE_DOMAINS, domains, strict=True))[env_id]()
