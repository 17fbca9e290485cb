"""A person plays an ALFWorld game in the terminal."""

from pathlib import Path

from rich.columns import Columns
from rich.console import Console
from rich.text import Text

from env_wrappers.alfworld.engine import GameEngine
from hgpo_rllib.play.console import QUIT, ask


def play_game(game: Path, max_steps: int, console: Console, trusted: bool = False) -> bool:
    """Play until the goal is reached, the steps are used up or the player quits; return if won.

    Args:
        trusted: whether the game is, as for `GameEngine`.

    Raises:
        DataError: the game cannot be loaded.
    """
    engine = GameEngine(game, trusted)
    state, observation = engine.reset()
    steps = 0
    console.print(Text(f"A number or a command is a step, {QUIT!r} ends the game."), style="dim")
    while not state.won and steps < max_steps:
        console.print(Text(f"\n{observation}"))
        _offer(console, state.admissible)
        command = _choose(console, state.admissible, max_steps - steps)
        if command == QUIT:
            break
        state, observation = engine.step(state, command)
        steps += 1
    else:
        console.print(Text(f"\n{observation}"))
    _say_end(console, state.won, steps, max_steps)
    return state.won


def _offer(console: Console, admissible: tuple[str, ...]) -> None:
    items = [Text(f"{number:>3} {command}") for number, command in enumerate(admissible, start=1)]
    console.print(Columns(items, column_first=True, padding=(0, 2)))


def _choose(console: Console, admissible: tuple[str, ...], left: int) -> str:
    """Ask until there is a command; what is no step costs none."""
    while True:
        answer = ask(console, f"{left} {'step' if left == 1 else 'steps'} left > ")
        if not answer:
            continue
        if not answer.isdecimal():
            return answer
        if 1 <= int(answer) <= len(admissible):
            return admissible[int(answer) - 1]
        console.print(Text(f"There is no action {answer}: choose 1 to {len(admissible)}."))


def _say_end(console: Console, won: bool, steps: int, max_steps: int) -> None:
    count = f"{steps} {'step' if steps == 1 else 'steps'}"
    if won:
        console.print(Text(f"Won in {count}.", style="bold green"))
    elif steps == max_steps:
        console.print(Text(f"Lost: the goal is not reached after {count}.", style="bold red"))
    else:
        console.print(Text(f"Lost: you left after {count}.", style="bold red"))
