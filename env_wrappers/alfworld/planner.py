"""Plans that solve a game: the recorded walkthrough, or Fast Downward's with a time limit."""

import os
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from env_wrappers.alfworld.engine import GameEngine, get_engine, read_content
from env_wrappers.alfworld.memo import MEMO_VARIABLE, CachedPddlEnv
from env_wrappers.errors import DataError
from env_wrappers.files import read_json
from env_wrappers.processes import process_pool


def recorded_plan(game: Path, trusted: bool = False) -> list[str]:
    """Return the walkthrough in a game file; for generated games, this is the oracle's.

    Args:
        game: a game file. Some copies of the official games contain entity ids of the PDDL
            problem, as TextWorld's planner writes them; they are replaced by display names.
        trusted: see ``GameEngine``.

    Raises:
        DataError: the file cannot be read, or has no walkthrough.
    """
    try:
        plan = read_json(game).get("walkthrough")
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"cannot read the walkthrough of {game}: {error}") from error
    if not isinstance(plan, list) or not plan or not all(isinstance(c, str) for c in plan):
        raise DataError(f"{game} has no recorded walkthrough: let the planner find one")
    has_ids = any("_bar_" in command for command in plan)  # official ids contain "|", mangled
    return get_engine(game, trusted).commands(plan) if has_ids else plan


def find_plan(game: Path, seconds: float, trusted: bool = False) -> list[str]:
    """Return a plan found by Fast Downward, after replaying it to check that it wins.

    The search cannot be interrupted, and takes minutes in some kitchens, so it runs in a separate
    process that is killed at the time limit.

    Args:
        game: any game file.
        seconds: wall-clock limit, including process start (a few seconds).
        trusted: see ``GameEngine``.

    Raises:
        DataError: the game cannot be loaded, or no plan was found in time.
    """
    engine = get_engine(game, trusted)
    with process_pool(1) as pool:
        try:
            plan = pool.submit(_search, game, trusted).result(timeout=seconds)
        except TimeoutError:
            raise DataError(
                f"no plan for {game} within {seconds:g} seconds: allow more time"
            ) from None
        except BrokenProcessPool:
            raise DataError(f"the planner process died on {game}: no plan") from None
    if not plan:
        raise DataError(f"the planner finds no plan for {game}: its goal cannot be reached")
    fault = why_not_won(engine, plan)
    if fault:
        raise DataError(f"the planner's plan for {game} does not win: {fault}")
    return plan


def _search(game: Path, trusted: bool) -> list[str]:
    os.environ[MEMO_VARIABLE] = "0"  # the cache skips the translation that the planner needs
    core = CachedPddlEnv()
    core.load(read_content(game), trusted)
    core.reset()
    return core._pddl_state.replan(core._entity_infos)  # type: ignore[no-any-return]


def why_not_won(engine: GameEngine, plan: Sequence[str]) -> str | None:
    """Replay a plan from the start; return None if it wins, otherwise the reason."""
    state, _ = engine.reset()
    for number, command in enumerate(plan, start=1):
        if command not in state.admissible:
            return f"command {number} of {len(plan)}, {command!r}, is not admissible there"
        state, _ = engine.step(state, command)
        if state.won:
            return None
    return f"after all {len(plan)} commands the goal is not reached"
