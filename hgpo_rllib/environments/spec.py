"""Base classes of environment specs, for training and evaluation."""

import hashlib
import itertools
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import gymnasium as gym

from env_wrappers.errors import DataError
from hgpo_rllib.advantages.estimators import TEACHERS
from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments.checks import check_contract, check_settings
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.settings.env import EnvSettings

Info = Mapping[str, Any]
"""The info returned by an environment's ``reset`` and ``step``."""
Example = tuple[str, str]
"""Prompt and response of a demonstration."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Games:
    """The games of a split."""

    names: tuple[str, ...]
    """Names by task number; with equal `data_hash`, equal names mean equal games."""
    data_hash: str | None
    """SHA-256 of the data that define the games; None if unknown."""

    def list_hash(self, tasks: Iterable[int]) -> str:
        """Return the SHA-256 of the sorted distinct names of the tasks."""
        return digest("\n".join(sorted({self.names[task] for task in tasks})).encode())


def digest(content: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class OraclePlan:
    """Sequence of actions that wins an episode."""

    actions: Sequence[str]
    fallback: str | None = None
    """Action for all steps after the plan; None: it is an error if the plan does not win."""
    fallback_reason: str = ""
    """Why the plan may not win; recorded with the fallback steps."""
    thoughts: Sequence[str] = ()
    """One thought per action, for demonstrations; if there are none, thoughts are empty."""


class Expert(Protocol):
    """Scripted player of one episode."""

    def act(self, observation: str, admissible: Sequence[str], last: str | None) -> tuple[str, str]:
        """Return thought and action; `last` is the action executed before, None at the start."""


MakeExpert = Callable[[Info, random.Random], Expert]
"""Creates the expert of an episode from the info of its reset.

Raises DataError if there is none for this game.
"""


class PlanFollower:
    """Expert that plays a plan."""

    def __init__(self, plan: OraclePlan):
        """Initialize with the plan."""
        self._reason = plan.fallback_reason or "the plan ends before the goal is reached"
        thoughts = plan.thoughts or [""] * len(plan.actions)
        self._rest: Iterator[tuple[str, str]] = zip(thoughts, plan.actions, strict=True)
        if plan.fallback is not None:
            fallback = itertools.repeat((plan.fallback_reason, plan.fallback))
            self._rest = itertools.chain(self._rest, fallback)

    def act(self, observation: str, admissible: Sequence[str], last: str | None) -> tuple[str, str]:
        """Return the next thought and action of the plan, regardless of the observation.

        Raises:
            DataError: the plan ended without winning, and has no fallback.
        """
        turn = next(self._rest, None)
        if turn is None:
            raise DataError(self._reason)
        return turn


class NoisyExpert(Expert, Protocol):
    """Expert with perturbed actions, so that demonstrations include recovery from errors."""

    def perturb(self, admissible: Sequence[str], rng: random.Random) -> str:
        """Return an action, usually a bad one, to execute instead of the expert's."""

    def is_worth_learning(self, info: Info) -> bool:
        """Return whether to keep an episode that ended with this info."""


class Strategist(NoisyExpert, Protocol):
    """Expert that can follow a strategy, see `DemonstrationGenerator.has_strategies`."""

    def strategy(self) -> str:
        """Choose a strategy for the episode and return it; called before the first action."""


MakeNoisyExpert = Callable[[Info, random.Random], NoisyExpert]
"""Creates the expert of an episode from the info of its reset."""


class DemonstrationGenerator(ABC):
    """Generates the demonstrations from which the pocket model is cloned.

    If the run has data, `warm_start.games` tasks of its train split are demonstrated, evenly
    spaced in their order.

    Attributes:
        name: used in the names of cached directories.
        recipe: source files that affect the demonstrations, besides those shared by all
            environments.
        function_words: frequent function words, which the pocket model's tokenizer may merge.
        has_strategies: whether experts are of the kind `Strategist`.
    """

    name: str
    recipe: tuple[Path, ...]
    function_words: str
    has_strategies: bool = False

    @abstractmethod
    def expert_factory(self, config: RunConfig) -> MakeNoisyExpert:
        """Return the function that creates experts; worker processes unpickle it."""

    def augment(self, examples: Sequence[Example], rng: random.Random) -> Sequence[Example]:
        """Return the examples to clone in place of the demonstrated ones. Default: the same."""
        return examples

    def exercises(self, examples: Sequence[Example], rng: random.Random) -> Sequence[Example]:
        """Return examples of single skills, which are learned before `examples`. Default: none."""
        return []


class TaskGenerator(DemonstrationGenerator):
    """Also generates data, for runs with `env.data=null`.

    These are the data of training and evaluation, and those of the demonstrated tasks.
    """

    @abstractmethod
    def data_settings(self, config: RunConfig) -> dict[str, Any]:
        """Return all settings that the data depend on, including the generator's version."""

    def demonstration_settings(self, config: RunConfig) -> dict[str, Any]:
        """Return the part of `data_settings` that demonstrations depend on. Default: all."""
        return self.data_settings(config)

    def demonstration_options(self, config: RunConfig) -> dict[str, Any]:
        """Return the environment arguments for demonstrations, other than `data`."""
        return {}

    @abstractmethod
    def make_demonstration_data(
        self, config: RunConfig, path: Path, on_progress: Progress
    ) -> Sequence[str]:
        """Write the data; return the names of the tasks to demonstrate, the first of the split."""

    @abstractmethod
    def make_data(self, config: RunConfig, path: Path, on_progress: Progress) -> None:
        """Write the data of training and evaluation."""

    @abstractmethod
    def make_sample(self, config: RunConfig, path: Path) -> None:
        """Quickly write sample data with the splits and kinds of tasks of `make_data`.

        Environments can be created with them to check settings; playing may not be possible.
        """


class EnvironmentSpec:
    """Spec of a text environment.

    This class works for every environment that meets docs/bring_your_own_environment.md.
    Subclasses override it for more features and are registered with `register_environment`.
    """

    prompts: ClassVar[Mapping[str, str]] = {}
    """Prompt templates (name or path) of the agents of `hgpo evaluate`: ``full`` for `hgpo` and
    `vanilla`, ``react`` for `react`, ``react`` and ``reflexion`` for `reflexion`."""
    max_steps: int | None = None
    """`env.max_steps` of evaluations without a run's settings; None: the default."""
    eval_split: str | None = None
    """Split that `hgpo evaluate` plays; None: the first of `evaluation.splits`."""
    released_shuffles: bool = False
    """In the `released` protocol, whether each of the 128 environments plays its own shuffle of the
    tasks; otherwise one generator draws 128 distinct tasks at a time."""
    packages: tuple[str, ...] = ()
    """Distribution packages whose versions an evaluation records."""
    generator: DemonstrationGenerator | None = None
    """Generator of demonstrations and, if it is a `TaskGenerator`, of data; None if users provide
    the model."""

    def __init__(self, env_id: str):
        """`env_id`: Gymnasium id as in the settings."""
        self.env_id = env_id

    @property
    def name(self) -> str:
        """Short name of the id: ``alfworld`` for ``hgpo/ALFWorld-v0``."""
        name = re.sub(r"-v\d+$", "", self.env_id.rpartition("/")[2])
        return re.sub(r"\W+", "-", name.lower())

    def parts(self, config: RunConfig) -> dict[str, RunConfig]:
        """Return the settings of each environment in a mixture, by name.

        Other environments are their only part, without a name.

        Raises:
            ConfigError: the mixture is not described correctly.
        """
        return {"": config}

    def with_data(self, config: RunConfig, find: Callable[[RunConfig], str | None]) -> RunConfig:
        """Return the settings with `find(part)` as `env.data` of each of the `parts`."""
        env = config.env.model_copy(update={"data": find(config)})
        return config.model_copy(update={"env": env})

    def with_prompts(self, config: RunConfig, change: Callable[[str], str]) -> RunConfig:
        """Return the settings with `change` applied to the prompts of a mixture's environments."""
        return config

    def find_split(self, config: RunConfig, split: str) -> tuple[RunConfig, str]:
        """Return the settings of the environment that has this split, and the split's name there.

        In a mixture, it is the environment of ``NAME.SPLIT``; other environments have all splits.

        Raises:
            ConfigError: the split is not of one environment.
        """
        return config, split

    def check(self, config: RunConfig, split: str) -> None:
        """Check data and settings before anything is started.

        By default: create the environment, play one step of its first task, and check the results.

        Raises:
            ConfigError, DataError: something is missing or broken; the message names it.
        """
        check_contract(config, split)

    def games(self, env: gym.Env, settings: EnvSettings, split: str) -> Games:
        """Return the games of an environment created with these settings."""
        count = env.get_wrapper_attr("num_tasks")
        return Games(tuple(f"{split}/{task}" for task in range(count)), None)

    def oracle(self, settings: EnvSettings) -> Callable[[Info], OraclePlan] | None:
        """Return the function from a reset's info to a winning plan; None if there is no oracle."""
        return None

    def require_oracle(self, settings: EnvSettings) -> Callable[[Info], OraclePlan]:
        """Return the oracle.

        Raises:
            ConfigError: the environment has no oracle.
        """
        find_plan = self.oracle(settings)
        if find_plan is None:
            names = " or ".join(name for name, what in TEACHERS.items() if what == "plan")
            raise ConfigError(
                f"algorithm.estimator={names} tells a teacher the oracle's plan, and {self.env_id} "
                "has no oracle: choose another estimator"
            )
        return find_plan

    def players(self, settings: EnvSettings) -> Mapping[str, MakeExpert]:
        """Return scripted agents of `hgpo evaluate` and `hgpo data demos` by name."""
        return {}

    def experts(self, settings: EnvSettings, **changes: Any) -> dict[str, MakeExpert]:
        """Return the oracle, if there is one, with changes to its plans, and the `players`."""
        found: dict[str, MakeExpert] = {}
        if find_plan := self.oracle(settings):
            found["oracle"] = lambda info, rng: PlanFollower(replace(find_plan(info), **changes))
        return found | dict(self.players(settings))

    def data_generator(self, config: RunConfig) -> TaskGenerator | None:
        """Return the generator of the run's data; None if it has data or needs none."""
        if config.env.data is None and isinstance(self.generator, TaskGenerator):
            return self.generator
        return None

    def require_generator(self) -> DemonstrationGenerator:
        """Return the generator.

        Raises:
            ConfigError: the environment has no generator.
        """
        if self.generator is None:
            raise ConfigError(
                f"model.model_path: there is no pocket model for {self.env_id}, as no expert "
                "demonstrates its tasks: name a model"
            )
        return self.generator


class BuiltInSpec(EnvironmentSpec):
    """Spec of an environment of `env_wrappers`, which meets the contract."""

    def check(self, config: RunConfig, split: str) -> None:
        """Check the settings; the environment reads its data when it is created."""
        check_settings(config, split).close()


def prompts_of(name: str) -> dict[str, str]:
    """Return the `EnvironmentSpec.prompts` of the templates NAME_full, NAME_react, …"""
    return {agent: f"{name}_{agent}" for agent in ("full", "react", "reflexion")}
