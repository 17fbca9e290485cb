"""What training and evaluation need to know of an environment."""

import hashlib
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import gymnasium as gym

from hgpo_rllib.config import ConfigError, EnvSettings, RunConfig
from hgpo_rllib.environments.checks import check_contract

Info = Mapping[str, Any]
"""What an environment's ``reset`` and ``step`` return as info."""
Progress = Callable[[int, int], None]


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


def digest(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class OraclePlan:
    """Actions that win an episode."""

    actions: Sequence[str]
    fallback: str | None = None
    """The action of all steps beyond the plan. None: it is an error when the plan does not win."""
    fallback_reason: str = ""
    """Why the plan may not win, recorded with those steps."""


class Expert(Protocol):
    """Plays one episode by rules, from the text that it sees."""

    def act(self, observation: str, admissible: Sequence[str], last: str | None) -> tuple[str, str]:
        """Return thought and action.

        Args:
            observation: what the last action led to.
            admissible: actions accepted now.
            last: the action that was executed before, None at the start.
        """


class NoisyExpert(Expert, Protocol):
    """An expert whose actions can be perturbed, so that a model sees how to recover from errors."""

    def perturb(self, admissible: Sequence[str], rng: random.Random) -> str:
        """Return an action, usually a bad one, to execute in place of the expert's."""

    def is_worth_learning(self, info: Info) -> bool:
        """Whether to keep an episode that ended with this info."""


class TaskGenerator(ABC):
    """Makes the tasks of an environment, and those that experts demonstrate for the pocket model.

    Attributes:
        name: part of the names of what is kept.
        recipe: source files that shape the demonstrations, beside those of all environments.
        function_words: frequent words without meaning of their own, which the pocket model's
            tokenizer may merge.
    """

    name: str
    recipe: tuple[Path, ...]
    function_words: str

    @abstractmethod
    def data_settings(self, config: RunConfig) -> dict[str, Any]:
        """What the data depend on, the generator's version included."""

    def demonstration_settings(self, config: RunConfig) -> dict[str, Any]:
        """The part of `data_settings` that the data of demonstrations depend on; here all."""
        return self.data_settings(config)

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
    def make_expert(info: Info, rng: random.Random) -> NoisyExpert:
        """The expert for the episode that an info began. Worker processes import it by name."""


class EnvironmentSpec:
    """A text environment.

    This class serves every environment that docs/bring_your_own_environment.md describes. A
    subclass overrides what an environment has more, and is registered with `register_environment`.
    """

    prompts: ClassVar[Mapping[str, str]] = {}
    """Templates (name or path) of the agents of `hgpo evaluate`: ``full`` for `hgpo` and `vanilla`,
    ``react`` for `react`, both ``react`` and ``reflexion`` for `reflexion`."""
    max_steps: int | None = None
    """`env.max_steps` of an evaluation without the settings of a run; None: the default."""
    eval_split: str | None = None
    """Split that `hgpo evaluate` plays; None: the first of `evaluation.splits`."""
    parity_shuffles: bool = False
    """Under the protocol `parity`, each of the 128 environments walks through a shuffle of its own;
    otherwise one generator draws 128 different tasks at a time."""
    packages: tuple[str, ...] = ()
    """Distributions whose versions an evaluation records."""
    generator: TaskGenerator | None = None
    """None: the user names data and model."""

    def __init__(self, env_id: str):
        """`env_id`: as in the settings."""
        self.env_id = env_id

    @property
    def name(self) -> str:
        """The id in short: ``alfworld`` for ``hgpo/ALFWorld-v0``."""
        name = self.env_id.rpartition("/")[2].rpartition("-")[0].lower()
        return re.sub(r"\W+", "-", name)

    def check(self, config: RunConfig, split: str) -> None:
        """Look at data and settings before anything is started.

        Here: make the environment, play one step of its first task, and look at what it says.

        Raises:
            ConfigError, DataError: something is missing or broken; one line names it.
        """
        check_contract(config, split)

    def games(self, env: gym.Env, settings: EnvSettings, split: str) -> Games:
        """The games of an environment that was made with these settings."""
        count = env.get_wrapper_attr("num_tasks")
        return Games(tuple(f"{split}/{task}" for task in range(count)), None)

    def oracle(self, settings: EnvSettings) -> Callable[[Info], OraclePlan]:
        """Returns the function from the info of a reset to a plan that wins.

        Raises:
            ConfigError: there is none.
        """
        raise ConfigError(f"--agent oracle: there is none for {self.env_id}")

    def require_generator(self) -> TaskGenerator:
        """The generator.

        Raises:
            ConfigError: there is none: the environment needs a model of its own.
        """
        if self.generator is None:
            raise ConfigError(
                f"model.model_path: there is no pocket model for {self.env_id}, which does not "
                "generate tasks: name a model"
            )
        return self.generator
