"""`hgpo bench webshop`: agreement with recordings, speed and memory of a store and of a large one.

Everything that is measured runs in a process of its own. Seconds are CPU seconds of that process,
imports not counted; memory is what is resident, mapped files included.
"""

import random
import resource
import tempfile
from collections.abc import Callable
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
from hgpo_rllib.bench.measure import Result, Row, Tables, new_process, resident, timed
from hgpo_rllib.bench.webshop_recordings import compare_recordings

SMALL = 1000  # products of the store that is generated where no data is given
SERVED = 64  # environments in the large store
QUERIES = 1000  # put to the large store
_SPLIT = "test"  # the one that every store has
_SEARCH_WORDS = 4  # of the instruction, where a random policy does not take all


def bench_webshop(
    data: Path | None,
    recordings: Path | None = None,
    products: int = 0,
    steps: int = 20_000,
    environments: int = 128,
) -> Tables:
    """Measure a store, and a large one if it is asked for.

    Args:
        data: a WebShop data directory; None: a generated store of a thousand products.
        recordings: of the original, made with that data; None: no comparison.
        products: of the large store, which is generated; 0: none.
        steps: by one environment.
        environments: added to it in the same process.

    Returns:
        ``recordings``, where they are compared; ``store``; of the large store ``building`` and
        ``serving``.

    Raises:
        DataError: the data or the recordings cannot be used.
    """
    with tempfile.TemporaryDirectory() as name:
        if data is None:
            data = Path(name) / "small"
            generate(data, CatalogueSpec(products=SMALL))
        found: Tables = {}
        if recordings is not None:
            found["recordings"] = compare_recordings(data, recordings)
        open_shop(data)  # so that its cache is built
        found["store"] = [_alone(measure_speed, data, steps, environments)]
        if products:
            large = Path(name) / "large"
            _alone(generate, large, CatalogueSpec(products=products))
            found["building"] = [_alone(measure_build, large)]
            found["serving"] = [_alone(measure_service, large)]
    return found


def _alone(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a fresh process."""
    with new_process() as process:
        return process.submit(function, *arguments).result()


# --- one store, whose cache is built --------------------------------------------------------------


def measure_speed(data: Path, steps: int, environments: int) -> Row:
    """Make an environment, let it play, and add more, each of which plays an episode."""
    construction_s, env = timed(lambda: _ready(data))
    shop = open_shop(data)
    _play(env, 1, seed=-1)  # imports the stemmer
    seconds, played = _play(env, steps)
    before = resident()
    more = [_ready(data) for _ in range(environments)]
    for seed, one in enumerate(more):
        _play(one, 1, seed)
    return {
        "products": len(shop.catalogue),
        "goals": len(shop.goals),
        "first_environment_ms": 1000 * construction_s,
        "steps": played,
        "steps_per_s_of_one": played / seconds,
        "more_environments": len(more),
        "mb_for_these": (resident() - before) / 1e6,
    }


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
            begin = partial(env.reset, seed=rng.randrange(env.num_tasks))
            spent, (_, info) = timed(begin, clean=False)
            seconds += spent
        act = partial(env.step, _random_action(info, rng))
        spent, (_, _, bought, truncated, info) = timed(act, clean=False)
        seconds += spent
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


def measure_build(data: Path) -> Row:
    """Build the caches of a store from its files; what the process used before counts too."""
    catalogue_s, catalogue = timed(lambda: open_catalogue(data))
    goals_s, goals = timed(lambda: open_goals(catalogue, "synthetic", price_seed=0))
    return {
        "products": len(catalogue),
        "goals": len(goals),
        "products_and_index_min": catalogue_s / 60,
        "goals_min": goals_s / 60,
        "peak_gb": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e9,
    }


def measure_service(data: Path) -> Row:
    """Let environments play in a store, and put new queries to it."""
    envs = [_ready(data) for _ in range(SERVED)]
    shop = open_shop(data)
    _play(envs[0], 1, seed=-1)  # imports the stemmer
    plays = [_play(env, 1, seed) for seed, env in enumerate(envs)]
    search = shop.catalogue.search
    queries = [partial(search, query) for query in make_queries(shop.catalogue, shop.goals)]
    query_ms = [1000 * timed(query, clean=False)[0] for query in queries]
    return {
        "environments": len(envs),
        "steps_per_s": sum(steps for _, steps in plays) / sum(seconds for seconds, _ in plays),
        "new_queries": len(query_ms),
        "median_query_ms": float(np.median(query_ms)),
        "p95_query_ms": float(np.quantile(query_ms, 0.95)),
        "resident_gb": resident() / 1e9,
    }


def make_queries(catalogue: Catalogue, goals: GoalList) -> list[str]:
    """Return different queries: all words of a wish, some of them, and titles."""
    rng = random.Random(0)
    queries: dict[str, None] = {}
    for _ in range(QUERIES):
        words = read_wish(goals[rng.randrange(len(goals))].instruction).words
        some = rng.sample(words, min(_SEARCH_WORDS, len(words)))
        title = catalogue[rng.randrange(len(catalogue))].title
        queries[rng.choice((" ".join(words), " ".join(some), title))] = None
    return list(queries)
