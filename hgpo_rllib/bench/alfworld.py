"""`hgpo bench alfworld`: compare the fast engine with TextWorld's on the same games and actions.

TextWorld's engine plays in a separate process and records commands and answers. The fast engine
then receives the same commands. Times are CPU seconds of the process.
"""

import functools
import os
import random
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

from env_wrappers.alfworld.engine import GameEngine, read_content
from env_wrappers.alfworld.env import ALFWorldEnv
from env_wrappers.alfworld.games import find_games
from env_wrappers.alfworld.generator import GenerationSpec, generate
from env_wrappers.alfworld.planner import recorded_plan
from env_wrappers.alfworld.translations import CACHE_VARIABLE
from env_wrappers.alfworld.trust import require_alfworld
from env_wrappers.errors import DataError
from hgpo_rllib.bench.measure import Row, Tables, new_process, resident, timed

POLICIES = ("random", "oracle", "nonsense")
NONSENSE_RATE = 0.05  # share of invalid commands of the third policy, otherwise random
NONSENSE = ("dance", "", "go to\nnowhere", "“take” the ☕", "take all", " look ", "help")
GROUP_SIZE = 8
NO_CACHE = {CACHE_VARIABLE: "0"}  # of translations
_BANNER = "-= Welcome to TextWorld, ALFRED! =-"
_KITCHENS = range(1, 31)  # numbers of floor plans
_RESETS = 1000  # resets of a loaded game by the fast engine, to get a measurable time

Answer = tuple[str, list[str], bool]
"""Observation, admissible actions, and whether the game is won."""


@dataclass(frozen=True)
class Episode:
    """One episode played by one engine; times are in seconds."""

    commands: list[str]
    answers: list[Answer]
    """Answers to the reset and to each command."""
    load_s: float
    """Time to load the game and reset it."""
    reset_s: float
    """Time of another reset."""
    steps_s: float
    """Total time of all steps."""


def bench_alfworld(
    data: Path | None,
    split: str,
    official: int,
    generated: int,
    environments: int = 128,
    max_steps: int = 50,
) -> Tables:
    """Compare the engines game by game, and start many environments in one process.

    Half of the `official` games of the data are in kitchens. At least 8 environments each play the
    same game.

    Returns:
        ``steps`` (with ``differing_answers`` of all resets and steps) and ``starts``, one row per
        kind of game, and ``environments``. Ratios are TextWorld's time divided by that of the fast
        engine.

    Raises:
        DataError: there are too few games.
    """
    with (
        tempfile.TemporaryDirectory() as name,
        patch.dict(os.environ, {CACHE_VARIABLE: str(Path(name) / "translations")}),
    ):
        kinds: dict[str, list[str]] = {}
        if data is not None and official:
            kinds |= _by_room(_shuffled(data, split, official), official)
        if generated:
            with patch.dict(os.environ, NO_CACHE):
                generate(Path(name) / "games", GenerationSpec(splits={"train": generated}))
            kinds["generated"] = _shuffled(Path(name) / "games", "train", generated)
        if not kinds:
            raise DataError("no games to compare: ask for some with --official or --generated")
        steps, starts = [], []
        with new_process() as textworld:
            for kind, games in kinds.items():
                played = _compare(games, max_steps, textworld)
                steps.append({"games": kind} | played[0])
                starts.append({"games": kind} | played[1])
        several = [game for games in kinds.values() for game in games]
        several = several[: max(1, environments // GROUP_SIZE)]
        each = [several[i % len(several)] for i in range(environments)]
        with new_process() as fresh:
            row = fresh.submit(start_environments, each, max_steps).result()
    return {"steps": steps, "starts": starts, "environments": [row]}


def _shuffled(data: Path, split: str, count: int) -> list[str]:
    """Return all games of a split, at least `count`, in a fixed order that mixes task types."""
    games = find_games(data, split)
    if len(games) < count:
        raise DataError(f"{count} games wanted, but there are {len(games)}: ask for fewer")
    return [str(game) for game in random.Random(0).sample(games, len(games))]


def _by_room(games: list[str], count: int) -> dict[str, list[str]]:
    """Return `count` games: half in kitchens, which have the largest states, half elsewhere."""
    kitchens: list[str] = []
    others: list[str] = []
    for game in games:
        floor_plan = Path(game).parents[1].name.rsplit("-", 1)[-1]
        in_kitchen = floor_plan.isdecimal() and int(floor_plan) in _KITCHENS
        (kitchens if in_kitchen else others).append(game)
    number = min(count - min(count // 2, len(others)), len(kitchens))
    kinds = {"kitchens": kitchens[:number], "other rooms": others[: count - number]}
    return {kind: chosen for kind, chosen in kinds.items() if chosen}


# --- TextWorld's engine ------------------------------------------------------------------------


@functools.cache
def _textworld_engine() -> Any:
    """Return this process's engine, built as in ALFWorld."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs.pddl import PddlEnv

    return AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True)), shuffle=False)


def play_textworld(game: str, max_steps: int) -> list[Episode]:
    """Play one episode per policy with TextWorld's engine.

    Raises:
        DataError: the game has texts that TextWorld could execute as code.
    """
    content = read_content(Path(game))
    try:
        require_alfworld(content)
    except DataError as error:
        raise DataError(f"{game}: {error}") from None
    plan = recorded_plan(Path(game)) if content.get("walkthrough") else []
    engine, episodes = _textworld_engine(), []
    for policy in POLICIES:
        load_s, _ = timed(lambda: (engine.load(game), engine.reset()))
        reset_s, state = timed(engine.reset)
        rng = random.Random(f"{policy} {Path(game).parent}")
        rest = iter(plan if policy == "oracle" else [])
        intro, *others = _answer(state)
        answers: list[Any] = [(intro.replace(_BANNER, "").strip(), *others)]
        commands: list[str] = []
        steps_s = 0.0
        while len(commands) < max_steps and not state["won"]:
            if policy == "nonsense" and rng.random() < NONSENSE_RATE:
                commands.append(rng.choice(NONSENSE))
            else:
                commands.append(next(rest, None) or rng.choice(state["admissible_commands"]))
            step = functools.partial(engine.step, commands[-1])
            seconds, (state, *_) = timed(step, clean=False)
            steps_s += seconds
            answers.append(_answer(state))
        episodes.append(Episode(commands, answers, load_s, reset_s, steps_s))
    return episodes


def _answer(state: Any) -> Answer:
    """Return an answer without the action "help", which the fast engine does not have."""
    commands = [command for command in state["admissible_commands"] if command != "help"]
    return state.feedback, commands, state["won"]


# --- the fast engine ---------------------------------------------------------------------------


def play_fast(game: str, commands: list[str]) -> Episode:
    """Load a game in the fast engine and play the commands."""
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
    # Load a game once before timing, because the first load imports the translator.
    textworld.submit(play_textworld, games[0], max_steps=0).result()
    with patch.dict(os.environ, NO_CACHE):
        GameEngine(games[0])
    textworld_episodes, fast_episodes, first_loads_s = [], [], 0.0
    for game in games:
        episodes = textworld.submit(play_textworld, game, max_steps).result()
        first_loads_s += timed(functools.partial(GameEngine, game))[0]
        textworld_episodes += episodes
        fast_episodes += [play_fast(game, episode.commands) for episode in episodes]
    sides = textworld_episodes, fast_episodes
    load_s, reset_s = (
        [fmean(getattr(episode, name) for episode in side) for side in sides]
        for name in ("load_s", "reset_s")
    )
    return compare_episodes(textworld_episodes, fast_episodes), {
        "textworld_load_ms": 1000 * load_s[0],
        "first_load_ms": 1000 * first_loads_s / len(games),
        "load_ms": 1000 * load_s[1],
        "load_ratio": load_s[0] / load_s[1],
        "textworld_reset_ms": 1000 * reset_s[0],
        "reset_ms": 1000 * reset_s[1],
        "reset_ratio": reset_s[0] / reset_s[1],
    }


def compare_episodes(textworld_episodes: list[Episode], fast_episodes: list[Episode]) -> Row:
    """Return the row of ``steps`` for the same episodes played by both engines."""
    steps = sum(len(episode.commands) for episode in textworld_episodes)
    textworld_s = sum(episode.steps_s for episode in textworld_episodes)
    fast_s = sum(episode.steps_s for episode in fast_episodes)
    differing = sum(
        expected != got
        for a, b in zip(textworld_episodes, fast_episodes, strict=True)
        for expected, got in zip(a.answers, b.answers, strict=True)
    )
    return {
        "episodes": len(textworld_episodes),
        "won": sum(episode.answers[-1][2] for episode in textworld_episodes),
        "steps": steps,
        "differing_answers": differing,
        "textworld_steps_per_s": steps / textworld_s,
        "steps_per_s": steps / fast_s,
        "ratio": textworld_s / fast_s,
    }


# --- many environments -------------------------------------------------------------------------


def start_environments(games: list[str], max_steps: int) -> Row:
    """Create an environment for each game, reset them, and play random episodes."""
    tree, split = Path(games[0]).parents[3], Path(games[0]).parents[2].name
    before = resident()

    def ready() -> list[tuple[ALFWorldEnv, dict[str, Any]]]:
        envs = [ALFWorldEnv(tree, split, max_steps=max_steps) for _ in games]
        return [
            (env, env.reset(options={"game": game})[1])
            for env, game in zip(envs, games, strict=True)
        ]

    ready_s, envs = timed(ready)
    then = resident()
    steps_s, steps = timed(lambda: sum(_play_random(*pair, i) for i, pair in enumerate(envs)))
    return {
        "environments": len(envs),
        "games": len(set(games)),
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
