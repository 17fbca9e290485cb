"""`hgpo bench webshop`: agreement with recordings, speed and memory of a store and of a large one.

Everything that is measured runs in a process of its own. Seconds are CPU seconds of that process,
memory is what is resident, mapped files included.
"""

import gc
import random
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from env_wrappers.webshop.catalogue import Catalogue, open_catalogue
from env_wrappers.webshop.env import WebShopEnv
from env_wrappers.webshop.generator import CatalogueSpec, generate
from env_wrappers.webshop.goals import GoalList, open_goals
from env_wrappers.webshop.shop import open_shop
from env_wrappers.webshop.shopper import read_wish
from hgpo_rllib.bench.measure import Result, new_process, resident, timed
from hgpo_rllib.bench.webshop_recordings import Agreement, compare_recordings

SMALL = 1000  # products of the store that is generated where no data is given
SERVED = 64  # environments in the large store
QUERIES = 1000  # put to the large store
_SPLIT = "test"  # the one that every store has
_SEARCH_WORDS = 4  # of the instruction, where a random policy does not take all
_GB, _MB = 1e9, 1e6


@dataclass(frozen=True)
class StoreWorkload:
    """What to measure."""

    data: Path | None
    """A WebShop data directory; None: a generated store of a thousand products."""
    recordings: Path | None = None
    """Recordings made with that data; None: no comparison."""
    products: int = 0
    """Of the large store, which is generated; 0: none."""
    steps: int = 20_000
    """By one environment."""
    environments: int = 128
    """Added to it in the same process."""


@dataclass(frozen=True)
class Speed:
    """One store, whose cache is built."""

    products: int
    goals: int
    construction_seconds: float
    """Of the first environment of a process, with its first reset; imports are not counted."""
    steps: int
    steps_per_second: float
    """Of one environment, resets counted in; random clicks, and searches for words of the goal."""
    environments: int
    megabytes_added: float
    """By so many more environments, each of which has played an episode."""


@dataclass(frozen=True)
class Build:
    """A large store built from its data files."""

    products: int
    goals: int
    catalogue_minutes: float
    """Products and search index."""
    goals_minutes: float
    peak_gigabytes: float


@dataclass(frozen=True)
class Service:
    """A large store in use."""

    environments: int
    steps_per_second: float
    queries: int
    median_milliseconds: float
    """Of a query that was not put before."""
    p95_milliseconds: float
    resident_gigabytes: float
    """After all that."""


@dataclass(frozen=True)
class Report:
    """What was measured."""

    agreements: list[Agreement]
    speed: Speed
    build: Build | None
    service: Service | None


def bench_webshop(workload: StoreWorkload) -> Report:
    """Measure a store, and a large one if the workload has one.

    Raises:
        DataError: the data or the recordings cannot be used.
    """
    with tempfile.TemporaryDirectory() as name:
        data, large = workload.data, Path(name) / "large"
        if data is None:
            data = Path(name) / "small"
            generate(data, CatalogueSpec(products=SMALL))
        agreements = compare_recordings(data, workload.recordings) if workload.recordings else []
        open_shop(data)  # so that its cache is built
        speed = _alone(measure_speed, data, workload.steps, workload.environments)
        build = service = None
        if workload.products:
            _alone(generate, large, CatalogueSpec(products=workload.products))
            build = _alone(measure_build, large)
            service = _alone(measure_service, large)
    return Report(agreements, speed, build, service)


# --- one store ------------------------------------------------------------------------------------


def measure_speed(data: Path, steps: int, environments: int) -> Speed:
    """Make an environment, let it play, and add more."""
    construction_seconds, env = timed(lambda: _ready(data))
    shop = open_shop(data)
    _play(env, 1, seed=-1)  # imports the stemmer
    seconds, played = _play(env, steps)
    gc.collect()
    before = resident()
    more = [_ready(data) for _ in range(environments)]
    for seed, one in enumerate(more):
        _play(one, 1, seed)
    return Speed(
        products=len(shop.catalogue),
        goals=len(shop.goals),
        construction_seconds=construction_seconds,
        steps=played,
        steps_per_second=played / seconds,
        environments=len(more),
        megabytes_added=(resident() - before) / _MB,
    )


def _ready(data: Path) -> WebShopEnv:
    env = WebShopEnv(data, _SPLIT)
    env.reset(seed=0)
    return env


def _play(env: WebShopEnv, steps: int, seed: int = 0) -> tuple[float, int]:
    """Play whole episodes with so many steps or more; seconds of steps and resets, and steps."""
    rng = random.Random(seed)
    seconds, played, done = 0.0, 0, True
    info: dict[str, Any] = {}
    while played < steps or not done:
        if done:
            number = rng.randrange(env.num_tasks)
            start = time.process_time()
            _, info = env.reset(seed=number)
            seconds += time.process_time() - start
        action = _random_action(info, rng)
        start = time.process_time()
        _, _, bought, truncated, info = env.step(action)
        seconds += time.process_time() - start
        done = bought or truncated
        played += 1
    return seconds, played


def _random_action(info: dict[str, Any], rng: random.Random) -> str:
    action = rng.choice(info["admissible_actions"])
    if not action.startswith("search["):
        return action
    words = read_wish(info["goal"]).words or ("",)
    if rng.random() < 0.5:
        words = tuple(rng.sample(words, min(_SEARCH_WORDS, len(words))))
    return f"search[{' '.join(words)}]"


# --- a large store --------------------------------------------------------------------------------


def measure_build(data: Path) -> Build:
    """Build the caches of a store from its files; what the process used before counts too."""
    catalogue_seconds, catalogue = timed(lambda: open_catalogue(data))
    goals_seconds, goals = timed(lambda: open_goals(catalogue, "synthetic", price_seed=0))
    peak_kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Build(
        products=len(catalogue),
        goals=len(goals),
        catalogue_minutes=catalogue_seconds / 60,
        goals_minutes=goals_seconds / 60,
        peak_gigabytes=1024 * peak_kilobytes / _GB,
    )


def measure_service(data: Path) -> Service:
    """Let environments play in a store, and put queries to it."""
    envs = [_ready(data) for _ in range(SERVED)]
    shop = open_shop(data)
    _play(envs[0], 1, seed=-1)  # imports the stemmer
    plays = [_play(env, 1, seed) for seed, env in enumerate(envs)]
    search = shop.catalogue.search
    queries = _queries(shop.catalogue, shop.goals)
    milliseconds = [1000 * timed(partial(search, query))[0] for query in queries]
    return Service(
        environments=len(envs),
        steps_per_second=sum(steps for _, steps in plays) / sum(seconds for seconds, _ in plays),
        queries=len(milliseconds),
        median_milliseconds=float(np.median(milliseconds)),
        p95_milliseconds=float(np.quantile(milliseconds, 0.95)),
        resident_gigabytes=resident() / _GB,
    )


def _queries(catalogue: Catalogue, goals: GoalList) -> list[str]:
    """Return different queries: all words of a wish, some of them, and titles."""
    rng = random.Random(0)
    queries: dict[str, None] = {}
    for _ in range(QUERIES):
        words = read_wish(goals[rng.randrange(len(goals))].instruction).words
        some = rng.sample(words, min(_SEARCH_WORDS, len(words)))
        title = catalogue[rng.randrange(len(catalogue))].title
        queries[rng.choice((" ".join(words), " ".join(some), title))] = None
    return list(queries)


# --- measuring ------------------------------------------------------------------------------------


def _alone(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a fresh process."""
    with new_process() as process:
        return process.submit(function, *arguments).result()
