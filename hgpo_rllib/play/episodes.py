"""Show a recorded episode step by step: observation, thought, action and rewards."""

from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from hgpo_rllib.agent.parsing import find_thought
from hgpo_rllib.jsonl import EVALUATED_EPISODES, RUN_EPISODES, ResultsError, Row
from hgpo_rllib.play.terminal import QUIT, ask, plain
from hgpo_rllib.reporting.numbers import decimal, number
from hgpo_rllib.results.frames import read_episodes

POSITION_KEYS = ("iteration", "split", "group", "member", "seed", "place")
"""Keys of an episode's place in a run or evaluation, as far as it has them."""
VALUES = (("reward", "reward"), ("return", "step_return"), ("advantage", "advantage"))
"""Names of a step's numbers, with their keys."""


def read_episode(file: Path, index: int) -> Row:
    """Return an episode from a run's `episodes/*.jsonl.gz` or an evaluation, by index from 0.

    Raises:
        ResultsError: the file or episode does not exist, or the file is invalid.
    """
    if not file.is_file():
        raise ResultsError(
            f"{file}: no such file (a run keeps its episodes in episodes/*.jsonl.gz)"
        )
    episodes = read_episodes(file, RUN_EPISODES, EVALUATED_EPISODES)
    if not episodes:
        raise ResultsError(f"{file}: no episodes in it")
    if not 0 <= index < len(episodes):
        raise ResultsError(
            f"{file}: no episode {index}, there are {len(episodes)} (0 is the first)"
        )
    return episodes[index]


def show_episode(episode: Row, console: Console, step_by_step: bool) -> None:
    """Print an episode; if `step_by_step`, wait for Enter before each step ("quit" ends)."""
    _show_head(episode, console)
    steps = episode["steps"]
    for position, step in enumerate(steps):
        if step_by_step and ask(console, "Enter for the next turn > ") == QUIT:
            return
        _show_step(step, position, len(steps), console)
    won = bool(episode.get("success"))
    end = f"{'Won' if won else 'Lost'} in {len(steps)} {'step' if len(steps) == 1 else 'steps'}."
    console.print(Text(f"\n{end}", style="bold green" if won else "bold red"))


def _show_head(episode: Row, console: Console) -> None:
    console.print(Text(f"task: {plain(episode.get('goal') or 'n/a')}", style="bold"))
    where = ", ".join(f"{key} {plain(episode[key])}" for key in POSITION_KEYS if key in episode)
    console.print(Text(where))
    console.print(Text(f"game: {plain(episode.get('game', 'n/a'))}"))
    total = decimal(number(episode, "episode_return"))
    console.print(Text(f"{plain(episode.get('task_type', 'n/a'))}, return {total}"))


def _show_step(step: Row, position: int, steps: int, console: Console) -> None:
    console.print()
    console.print(Rule(Text(f"step {position + 1} of {steps}"), align="left"))
    console.print(Text(plain(step.get("anchor", ""))))
    console.print(Text.assemble(("thought: ", "bold"), (thought_of(step), "italic")))
    marks = marks_of(step)
    action = Text.assemble(("action:  ", "bold"), (plain(step.get("action", "")), "cyan"))
    console.print(
        action.append(f"  [{', '.join(marks)}]", "green" if marks == ["valid"] else "red")
    )
    values = (f"{name} {decimal(number(step, key), 3)}" for name, key in VALUES if key in step)
    console.print(Text(", ".join(values)))


def thought_of(step: Row) -> str:
    """Return the text inside the tags, or the whole completion if there are none."""
    completion = str(step.get("completion", ""))
    thought = find_thought(completion)
    return plain((completion if thought is None else thought).strip())


def marks_of(step: Row) -> list[str]:
    """Return the faults of a step's action, or "valid" if there are none."""
    marks = ["invalid"] if step.get("is_valid") is False else []
    marks += ["inadmissible"] if step.get("inadmissible") else []
    return marks or ["valid"]
