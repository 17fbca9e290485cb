"""`hgpo bench alfworld`: the fast engine against TextWorld's own, on the same games and actions.

TextWorld's engine plays in a process of its own, started for it, and records what it was sent and
what it answered; the fast engine is then sent the same. Seconds are CPU seconds of the process.
"""

import contextlib
import functools
import os
import random
import tempfile
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
from hgpo_rllib.bench.measure import Row, Tables, new_process, resident, timed

POLICIES = ("random", "oracle", "nonsense")
NONSENSE_RATE = 0.05  # of the third policy, random otherwise
NONSENSE = ("dance", "", "go to\nnowhere", "“take” the ☕", "take all", " look ", "help")
GROUP_SIZE = 8  # environments that play the same game
_BANNER = "-= Welcome to TextWorld, ALFRED! =-"
_RESETS = 1000  # of a loaded game by the fast engine, to get a time that can be measured
_KITCHENS = range(1, 31)  # numbers of floor plans

Answer = tuple[str, list[str], bool]
"""Observation, admissible actions, whether the game is won."""


@dataclass(frozen=True)
class Episode:
    """One episode, as one engine played it."""

    commands: list[str]
    answers: list[Answer]
    """To the reset, and to each command."""
    load_s: float
    """Loading the game and resetting it."""
    reset_s: float
    """Resetting it once more."""
    steps_s: float
    """All steps together."""


def bench_alfworld(
    data: Path | None,
    split: str,
    genuine: int,
    generated: int,
    environments: int = 128,
    max_steps: int = 50,
) -> Tables:
    """Compare the engines game by game, and start many environments.

    Args:
        data: an ALFWorld data directory; None: no genuine games.
        split: of the data.
        genuine: games of the data, half of them in kitchens.
        generated: games to generate.
        environments: to start at once, in groups of 8.
        max_steps: of an episode.

    Returns:
        ``steps`` (``differing_answers``: of all answers to resets and steps) and ``starts``, a row
        for each kind of game, and ``environments``. Ratios say how many times as long TextWorld
        takes.

    Raises:
        DataError: there are not as many games, or ``environments`` are not whole groups.
    """
    groups, rest = divmod(environments, GROUP_SIZE)
    if rest or not groups:
        raise DataError(f"{environments} environments: take multiples of {GROUP_SIZE}")
    with tempfile.TemporaryDirectory() as name, _translations_in(Path(name) / "translations"):
        made = _generated(Path(name), max(generated, 0 if data else groups))
        found = _shuffled(find_games(data, split)) if data else []
        kitchens = [game for game in found if _floor_plan(game) in _KITCHENS]
        others = [game for game in found if _floor_plan(game) not in _KITCHENS]
        in_kitchens = min(genuine - min(genuine // 2, len(others)), len(kitchens))
        kinds = {
            "kitchens": kitchens[:in_kitchens],
            "other rooms": _first(others, genuine - in_kitchens),
            "generated": made[:generated],
        }
        steps, starts = [], []
        with new_process() as textworld:
            for kind, games in kinds.items():
                if games:
                    played = _compare([str(game) for game in games], max_steps, textworld)
                    steps.append({"games": kind} | played[0])
                    starts.append({"games": kind} | played[1])
        several = [str(game) for game in _first([*kitchens, *others, *made], groups)]
        for game in several:
            GameEngine(game)  # so that its translation is kept
        with new_process() as fresh:
            row = fresh.submit(start_environments, several, max_steps).result()
    return {"steps": steps, "starts": starts, "environments": [row]}


def _generated(scratch: Path, count: int) -> list[Path]:
    if count == 0:
        return []
    with _translations_in(None):
        generate(scratch / "games", GenerationSpec(splits={"train": count}))
    return _shuffled(find_games(scratch / "games", "train"))


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


# --- TextWorld's engine ------------------------------------------------------------------------


@functools.cache
def _textworld_engine() -> Any:
    """Return this process's one engine, put together as ALFWorld does it."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs.pddl import PddlEnv

    return AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True)), shuffle=False)


def play_textworld(game: str, max_steps: int) -> list[Episode]:
    """Play one episode by each policy with TextWorld's engine.

    Raises:
        DataError: the game has texts that TextWorld could run as code.
    """
    content = read_content(Path(game))
    try:
        require_alfworld(content)
    except DataError as error:
        raise DataError(f"{game}: {error}") from None
    plan = recorded_plan(Path(game)) if content.get("walkthrough") else []
    return [
        _play_textworld(game, policy, plan if policy == "oracle" else [], max_steps)
        for policy in POLICIES
    ]


def _play_textworld(game: str, policy: str, script: Sequence[str], max_steps: int) -> Episode:
    engine = _textworld_engine()
    load_s, _ = timed(lambda: (engine.load(game), engine.reset()))
    reset_s, state = timed(engine.reset)
    rng = random.Random(f"{policy} {Path(game).parent}")
    rest = iter(script)
    intro, offered, won = _answer(state)
    answers = [(intro.replace(_BANNER, "").strip(), offered, won)]
    commands: list[str] = []
    steps_s = 0.0
    while len(commands) < max_steps and not state["won"]:
        if policy == "nonsense" and rng.random() < NONSENSE_RATE:
            commands.append(rng.choice(NONSENSE))
        else:
            commands.append(next(rest, None) or rng.choice(state["admissible_commands"]))
        seconds, (state, *_) = timed(functools.partial(engine.step, commands[-1]), clean=False)
        steps_s += seconds
        answers.append(_answer(state))
    return Episode(commands, answers, load_s, reset_s, steps_s)


def _answer(state: Any) -> Answer:
    """Return an answer without "help", which the fast engine does not offer."""
    commands = [command for command in state["admissible_commands"] if command != "help"]
    return state.feedback, commands, state["won"]


# --- the fast engine ---------------------------------------------------------------------------


def play_fast(game: str, commands: list[str]) -> Episode:
    """Play commands with the fast engine, freshly loaded for them."""
    load_s, engine = timed(lambda: GameEngine(game))
    resets_s, _ = timed(lambda: [engine.reset() for _ in range(_RESETS)])

    def play() -> list[Any]:
        reached = [engine.reset()]
        for command in commands:
            reached.append(engine.step(reached[-1][0], command))
        return reached

    steps_s, reached = timed(play)
    answers = [(text, list(state.admissible), state.won) for state, text in reached]
    return Episode(commands, answers, load_s, resets_s / _RESETS, steps_s)


def _compare(games: list[str], max_steps: int, textworld: ProcessPoolExecutor) -> tuple[Row, Row]:
    # The first load of a process imports the translator: do that before anything is timed.
    textworld.submit(play_textworld, games[0], max_steps=0).result()
    with _translations_in(None):
        GameEngine(games[0])
    theirs, ours, first_loads_s = [], [], 0.0
    for game in games:
        episodes = textworld.submit(play_textworld, game, max_steps).result()
        first_loads_s += timed(functools.partial(GameEngine, game))[0]
        theirs += episodes
        ours += [play_fast(game, episode.commands) for episode in episodes]
    return compare_episodes(theirs, ours), {
        "textworld_load_ms": 1000 * _mean(theirs, "load_s"),
        "first_load_ms": 1000 * first_loads_s / len(games),
        "load_ms": 1000 * _mean(ours, "load_s"),
        "load_ratio": _mean(theirs, "load_s") / _mean(ours, "load_s"),
        "textworld_reset_ms": 1000 * _mean(theirs, "reset_s"),
        "reset_ms": 1000 * _mean(ours, "reset_s"),
        "reset_ratio": _mean(theirs, "reset_s") / _mean(ours, "reset_s"),
    }


def compare_episodes(theirs: list[Episode], ours: list[Episode]) -> Row:
    """Return the row of ``steps`` for the same episodes as both engines played them."""
    steps = sum(len(episode.commands) for episode in theirs)
    pairs = [
        pair
        for a, b in zip(theirs, ours, strict=True)
        for pair in zip(a.answers, b.answers, strict=True)
    ]
    return {
        "episodes": len(theirs),
        "won": sum(episode.answers[-1][2] for episode in theirs),
        "steps": steps,
        "differing_answers": sum(expected != got for expected, got in pairs),
        "textworld_steps_per_s": steps / len(theirs) / _mean(theirs, "steps_s"),
        "steps_per_s": steps / len(ours) / _mean(ours, "steps_s"),
        "ratio": _mean(theirs, "steps_s") / _mean(ours, "steps_s"),
    }


def _mean(episodes: list[Episode], what: str) -> float:
    return float(sum(getattr(episode, what) for episode in episodes) / len(episodes))


# --- many environments -------------------------------------------------------------------------


def start_environments(games: list[str], max_steps: int) -> Row:
    """Make a group of environments for each game, reset them, and play random episodes."""
    tree, split = Path(games[0]).parents[3], Path(games[0]).parents[2].name
    before = resident()

    def ready() -> list[tuple[ALFWorldEnv, dict[str, Any]]]:
        envs = [ALFWorldEnv(tree, split, max_steps=max_steps) for _ in games * GROUP_SIZE]
        return [
            (env, env.reset(options={"game": game})[1])
            for env, game in zip(envs, games * GROUP_SIZE, strict=True)
        ]

    ready_s, envs = timed(ready)
    then = resident()
    steps_s, steps = timed(lambda: sum(_play_random(*pair, i) for i, pair in enumerate(envs)))
    return {
        "environments": len(envs),
        "games": len(games),
        "ready_s": ready_s,
        "mb_each": (then - before) / len(envs) / 1e6,
        "random_steps_per_s": steps / steps_s,
        "mb_each_at_the_end": (resident() - before) / len(envs) / 1e6,
    }


def _play_random(env: ALFWorldEnv, info: dict[str, Any], seed: int) -> int:
    """Play to the end of the episode and return the number of steps."""
    rng, steps, done = random.Random(seed), 0, False
    while not done:
        _, _, won, truncated, info = env.step(rng.choice(info["admissible_actions"]))
        done = won or truncated
        steps += 1
    return steps
