"""`hgpo bench alfworld`: the fast engine against TextWorld's own, on the same games and actions.

TextWorld's engine plays in a process of its own, started for it, and records what it was sent and
what it answered; the fast engine is then sent the same. Seconds are CPU seconds of the process.
"""

import contextlib
import functools
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from env_wrappers.alfworld.engine import GameEngine, read_content
from env_wrappers.alfworld.env import ALFWorldEnv
from env_wrappers.alfworld.games import find_games
from env_wrappers.alfworld.generator import GenerationSpec, generate
from env_wrappers.alfworld.planner import recorded_plan
from env_wrappers.alfworld.translations import SETTING
from env_wrappers.alfworld.trust import require_alfworld
from env_wrappers.errors import DataError
from hgpo_rllib.bench.measure import new_process, resident, timed_clean

POLICIES = ("random", "oracle", "nonsense")
NONSENSE_RATE = 0.05  # of the third policy, random otherwise
NONSENSE = ("dance", "", "go to\nnowhere", "“take” the ☕", "take all", " look ", "help")
GROUP_SIZE = 8  # environments that play the same game
_BANNER = "-= Welcome to TextWorld, ALFRED! =-"
_RESETS = 1000  # of a loaded game by the fast engine, to get a time that can be measured
_KITCHENS = range(1, 31)  # numbers of floor plans
_MB = 1e6

Answer = tuple[str, list[str], bool]
"""Observation, admissible actions, whether the game is won."""


@dataclass(frozen=True)
class Episode:
    """One episode, as one engine played it."""

    policy: str
    commands: list[str]
    answers: list[Answer]
    """To the reset, and to each command."""
    load_seconds: float
    """Loading the game and resetting it."""
    reset_seconds: float
    """Resetting it once more."""
    step_seconds: float
    """All steps together."""


@dataclass(frozen=True)
class Comparison:
    """Both engines on games of one kind; ratios say how many times as long TextWorld's takes."""

    kind: str
    games: int
    episodes: int
    wins: int
    steps: int
    differing_answers: int
    """Of all answers, to resets and steps: observation, admissible actions or won differ."""
    genuine_load_seconds: float
    """Of a game, with its reset; mean, like the others."""
    cold_load_seconds: float
    """The fast engine's, without a kept translation."""
    load_seconds: float
    """The fast engine's, with one."""
    load_ratio: float
    genuine_reset_seconds: float
    """Of a loaded game."""
    reset_seconds: float
    reset_ratio: float
    genuine_steps_per_second: float
    steps_per_second: float
    """Of an engine that knows nothing of the game: freshly loaded for every episode."""
    step_ratio: float


@dataclass(frozen=True)
class Crowd:
    """Many environments in one fresh process; translations are kept on disk."""

    environments: int
    games: int
    ready_seconds: float
    """Until all are made and reset."""
    megabytes: float
    """Resident memory per environment, then."""
    steps_per_second: float
    """Of random policies that share the engines, each to the end of an episode."""
    megabytes_after: float


@dataclass(frozen=True)
class EngineWorkload:
    """What to compare."""

    data: Path | None
    """An ALFWorld data directory; None: no genuine games."""
    split: str
    genuine: int
    """Games of the data, half of them in kitchens."""
    generated: int
    """Games to generate."""
    environments: int = 128
    """To start at once, in groups of 8: in genuine kitchens as far as there are any."""
    max_steps: int = 50
    """Of an episode."""


def bench_alfworld(workload: EngineWorkload) -> tuple[list[Comparison], Crowd]:
    """Compare the engines game by game, and start many environments.

    Raises:
        DataError: there are not as many games, or ``environments`` are not whole groups.
    """
    groups, rest = divmod(workload.environments, GROUP_SIZE)
    if rest or not groups:
        raise DataError(f"{workload.environments} environments: take multiples of {GROUP_SIZE}")
    with tempfile.TemporaryDirectory() as scratch:
        made = _generated(Path(scratch), max(workload.generated, 0 if workload.data else groups))
        kitchens, others = _genuine(workload.data, workload.split) if workload.data else ([], [])
        elsewhere = min(workload.genuine // 2, len(others))
        in_kitchens = min(workload.genuine - elsewhere, len(kitchens))
        kinds = {
            "kitchens": _first(kitchens, in_kitchens),
            "other rooms": _first(others, workload.genuine - in_kitchens),
            "generated": made[: workload.generated],
        }
        with _translations_in(Path(scratch) / "translations"):
            with new_process() as genuine_side:
                rows = [
                    _compare(kind, games, workload.max_steps, genuine_side)
                    for kind, games in kinds.items()
                    if games
                ]
            crowd = _crowd(_first([*kitchens, *others, *made], groups), workload.max_steps)
    return rows, crowd


# --- games -------------------------------------------------------------------------------------


def _generated(scratch: Path, count: int) -> list[Path]:
    if count == 0:
        return []
    with _translations_in(None):
        generate(scratch / "games", GenerationSpec(splits={"train": count}))
    return _shuffled(find_games(scratch / "games", "train"))


def _genuine(data: Path, split: str) -> tuple[list[Path], list[Path]]:
    """Return the games in kitchens and those elsewhere."""
    games = _shuffled(find_games(data, split))
    kitchens = [game for game in games if _floor_plan(game) in _KITCHENS]
    return kitchens, [game for game in games if game not in kitchens]


def _floor_plan(game: Path) -> int:
    """Return the number with which the name of a task ends; 0: its name is another."""
    number = game.parent.parent.name.rsplit("-", 1)[-1]
    return int(number) if number.isdecimal() else 0


def _shuffled(games: list[Path]) -> list[Path]:
    """Return the games in an order, always the same, that mixes task families."""
    return random.Random(0).sample(games, len(games))


def _first(games: list[Path], count: int) -> list[Path]:
    if len(games) < count:
        raise DataError(f"{count} games wanted, but there are {len(games)}: ask for fewer")
    return games[:count]


# --- TextWorld's engine ------------------------------------------------------------------------


@functools.cache
def _genuine_engine() -> Any:
    """Return this process's one engine, put together as ALFWorld does it."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs.pddl import PddlEnv

    return AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True)), shuffle=False)


def play_genuine(game: str, max_steps: int) -> list[Episode]:
    """Play one episode by each policy with TextWorld's engine.

    Raises:
        DataError: the game has texts that TextWorld could run as code.
    """
    content = read_content(Path(game))
    try:
        require_alfworld(content)
    except DataError as error:
        raise DataError(f"{game}: {error}") from None
    scripts = {"oracle": recorded_plan(Path(game)) if content.get("walkthrough") else []}
    engine = _genuine_engine()
    return [
        _play_genuine(engine, game, policy, scripts.get(policy, []), max_steps)
        for policy in POLICIES
    ]


def _play_genuine(
    engine: Any, game: str, policy: str, script: list[str], max_steps: int
) -> Episode:
    load_seconds, _ = timed_clean(lambda: (engine.load(game), engine.reset()))
    reset_seconds, state = timed_clean(engine.reset)
    rng = random.Random(f"{policy} {Path(game).parent}")
    script = list(script)
    commands: list[str] = []
    intro, offered, won = _answer(state)
    answers = [(intro.replace(_BANNER, "").strip(), offered, won)]
    step_seconds = 0.0
    while len(commands) < max_steps and not state["won"]:
        if policy == "nonsense" and rng.random() < NONSENSE_RATE:
            commands.append(rng.choice(NONSENSE))
        else:
            commands.append(script.pop(0) if script else rng.choice(state["admissible_commands"]))
        start = time.process_time()
        state, _, _ = engine.step(commands[-1])
        step_seconds += time.process_time() - start
        answers.append(_answer(state))
    return Episode(policy, commands, answers, load_seconds, reset_seconds, step_seconds)


def _answer(state: Any) -> Answer:
    """Return an answer without "help", which the fast engine does not offer."""
    commands = [command for command in state["admissible_commands"] if command != "help"]
    return state.feedback, commands, state["won"]


# --- the fast engine ---------------------------------------------------------------------------


def play_fast(game: str, like: Episode) -> Episode:
    """Play the same commands with the fast engine, loaded for it."""
    load_seconds, engine = timed_clean(lambda: GameEngine(game))
    resets_seconds, _ = timed_clean(lambda: [engine.reset() for _ in range(_RESETS)])

    def play() -> list[Any]:
        reached = [engine.reset()]
        for command in like.commands:
            reached.append(engine.step(reached[-1][0], command))
        return reached

    step_seconds, reached = timed_clean(play)
    answers = [(text, list(state.admissible), state.won) for state, text in reached]
    return Episode(
        like.policy, like.commands, answers, load_seconds, resets_seconds / _RESETS, step_seconds
    )


def _compare(
    kind: str, games: Sequence[Path], max_steps: int, genuine_side: ProcessPoolExecutor
) -> Comparison:
    names = [str(game) for game in games]
    # The first load of a process imports the translator: do that before anything is timed.
    genuine_side.submit(play_genuine, names[0], max_steps=0).result()
    with _translations_in(None):
        GameEngine(names[0])
    genuine, fast, cold_seconds = [], [], 0.0
    for name in names:
        episodes = genuine_side.submit(play_genuine, name, max_steps).result()
        cold_seconds += timed_clean(functools.partial(GameEngine, name))[0]
        genuine += episodes
        fast += [play_fast(name, episode) for episode in episodes]
    return _summary(kind, len(games), genuine, fast, cold_seconds)


def _summary(
    kind: str, games: int, genuine: list[Episode], fast: list[Episode], cold_seconds: float
) -> Comparison:
    def total(episodes: list[Episode], what: str) -> float:
        return sum(getattr(episode, f"{what}_seconds") for episode in episodes)

    def ratio(what: str) -> float:
        return total(genuine, what) / total(fast, what)

    steps = sum(len(episode.commands) for episode in genuine)
    pairs = [
        pair
        for g, f in zip(genuine, fast, strict=True)
        for pair in zip(g.answers, f.answers, strict=True)
    ]
    return Comparison(
        kind=kind,
        games=games,
        episodes=len(genuine),
        wins=sum(episode.answers[-1][2] for episode in genuine),
        steps=steps,
        differing_answers=sum(expected != got for expected, got in pairs),
        genuine_load_seconds=total(genuine, "load") / len(genuine),
        cold_load_seconds=cold_seconds / games,
        load_seconds=total(fast, "load") / len(fast),
        load_ratio=ratio("load"),
        genuine_reset_seconds=total(genuine, "reset") / len(genuine),
        reset_seconds=total(fast, "reset") / len(fast),
        reset_ratio=ratio("reset"),
        genuine_steps_per_second=steps / total(genuine, "step"),
        steps_per_second=steps / total(fast, "step"),
        step_ratio=ratio("step"),
    )


# --- many environments -------------------------------------------------------------------------


def _crowd(games: list[Path], max_steps: int) -> Crowd:
    for game in games:
        GameEngine(game)  # so that its translation is kept
    with new_process() as fresh:
        return fresh.submit(start_crowd, [str(game) for game in games], max_steps).result()


def start_crowd(games: list[str], max_steps: int) -> Crowd:
    """Make a group of environments for each game, reset them, and play random episodes."""
    tree = Path(games[0]).parents[3]
    split = Path(games[0]).parents[2].name
    before = resident()

    def ready() -> list[tuple[ALFWorldEnv, dict[str, Any]]]:
        envs = [
            (ALFWorldEnv(tree, split, max_steps=max_steps), game)
            for game in games
            for _ in range(GROUP_SIZE)
        ]
        return [(env, env.reset(options={"game": game})[1]) for env, game in envs]

    ready_seconds, envs = timed_clean(ready)
    then = resident()
    step_seconds, steps = timed_clean(
        lambda: sum(_play_random(*pair, index) for index, pair in enumerate(envs))
    )
    return Crowd(
        environments=len(envs),
        games=len(games),
        ready_seconds=ready_seconds,
        megabytes=(then - before) / len(envs) / _MB,
        steps_per_second=steps / step_seconds,
        megabytes_after=(resident() - before) / len(envs) / _MB,
    )


def _play_random(env: ALFWorldEnv, info: dict[str, Any], seed: int) -> int:
    """Play to the end of the episode and return the number of steps."""
    rng, steps, done = random.Random(seed), 0, False
    while not done:
        _, _, won, truncated, info = env.step(rng.choice(info["admissible_actions"]))
        done = won or truncated
        steps += 1
    return steps


# --- measuring ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _translations_in(folder: Path | None) -> Iterator[None]:
    """Keep translations in a folder of the benchmark's own, or not at all."""
    before = os.environ.get(SETTING)
    os.environ[SETTING] = str(folder or 0)
    try:
        yield
    finally:
        del os.environ[SETTING]
        if before is not None:
            os.environ[SETTING] = before
