"""`hgpo bench webshop`: speed and memory of a store.

Each measurement runs in a separate process. Times are CPU seconds of that process without imports;
memory is resident memory, including mapped files.
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
from env_wrappers.webshop.generator import generate
from env_wrappers.webshop.goals import GoalList, open_goals
from env_wrappers.webshop.shop import open_shop
from env_wrappers.webshop.shopper import read_wish
from env_wrappers.webshop.synthetic_products import CatalogueSpec
from hgpo_rllib.bench.measure import Row, T, Tables, new_process, resident, timed

QUERIES = 1000
_SPLIT = "test"  # exists in every store
_SEARCH_WORDS = 4  # words of the instruction in a random search that does not use all of them


def bench_webshop(data: Path | None, products: int, steps: int, environments: int) -> Tables:
    """Measure a store, or a generated one with `products` if `data` is None.

    Returns:
        ``building`` of a generated store, and ``store``, whose cache is built, with `steps` of one
        environment and more `environments` in the same process.

    Raises:
        DataError: the data are invalid.
    """
    tables: Tables = {}
    with tempfile.TemporaryDirectory() as name:
        if data is None:
            data = Path(name) / "store"
            _in_new_process(generate, data, CatalogueSpec(products=products))
            tables["building"] = [_in_new_process(measure_build, data)]
        open_shop(data)  # builds the cache of given data
        played = _in_new_process(measure_play, data, steps, environments)
        tables["store"] = [played | _in_new_process(measure_queries, data)]
    return tables


def _in_new_process(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a new process."""
    with new_process() as process:
        return process.submit(function, *arguments).result()


def measure_build(data: Path) -> Row:
    """Measure building a store's caches from its files; peak memory is that of the process."""
    catalogue_s, catalogue = timed(lambda: open_catalogue(data))
    goals_s, goals = timed(lambda: open_goals(catalogue, "synthetic", price_seed=0))
    return {
        "products": len(catalogue),
        "goals": len(goals),
        "products_and_index_min": catalogue_s / 60,
        "goals_min": goals_s / 60,
        "peak_gb": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e9,
    }


def measure_play(data: Path, steps: int, environments: int) -> Row:
    """Measure one environment that plays steps, then more that play one episode each."""
    construction_s, env = timed(lambda: _make_environment(data))
    shop = open_shop(data)
    _play(env, 1, seed=-1)  # imports the stemmer
    seconds, played = _play(env, steps)
    before = resident()
    more = [_make_environment(data) for _ in range(environments)]
    for seed, one in enumerate(more):
        _play(one, 1, seed)
    return {
        "products": len(shop.catalogue),
        "goals": len(shop.goals),
        "first_environment_ms": 1000 * construction_s,
        "steps": played,
        "steps_per_s": played / seconds,
        "more_envs": len(more),
        "mb_for_these": (resident() - before) / 1e6,
        "resident_gb": resident() / 1e9,
    }


def _make_environment(data: Path) -> WebShopEnv:
    env = WebShopEnv(data, _SPLIT)
    env.reset(seed=0)
    return env


def _play(env: WebShopEnv, steps: int, seed: int = 0) -> tuple[float, int]:
    """Play full episodes for at least `steps` steps; return seconds, with resets, and steps."""
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


def measure_queries(data: Path) -> Row:
    """Measure search queries that the shop has not answered before."""
    shop = open_shop(data)
    shop.catalogue.search("a")  # imports the stemmer
    search, queries = shop.catalogue.search, make_queries(shop.catalogue, shop.goals)
    query_ms = [1000 * timed(partial(search, query), clean=False)[0] for query in queries]
    return {
        "median_query_ms": float(np.median(query_ms)),
        "p95_query_ms": float(np.quantile(query_ms, 0.95)),
    }


def make_queries(catalogue: Catalogue, goals: GoalList) -> list[str]:
    """Return unique queries: all words of an instruction's wish, some of them, or a title."""
    rng = random.Random(0)
    queries: dict[str, None] = {}
    for _ in range(QUERIES):
        words = read_wish(goals[rng.randrange(len(goals))].instruction).words
        some = rng.sample(words, min(_SEARCH_WORDS, len(words)))
        title = catalogue[rng.randrange(len(catalogue))].title
        queries[rng.choice((" ".join(words), " ".join(some), title))] = None
    return list(queries)
