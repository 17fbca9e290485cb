"""Terminal input and output; play an episode by numbers of the listed actions, or by text.

Standard input may be a pipe.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
from rich.columns import Columns
from rich.console import Console
from rich.text import Text

from env_wrappers.spaces import ANY_ACTION, ANY_SEARCH
from hgpo_rllib.reporting.console import make_table

QUIT = "quit"


def make_console() -> Console:
    """Return a console that prints text unchanged and does not wrap lines in a pipe."""
    return Console(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty())


def ask(console: Console, prompt: str) -> str:
    """Return the next input line, stripped, or "quit" at the end of the input."""
    try:
        answer = console.input(Text(prompt, style="bold")).strip()
    except EOFError:
        console.print()
        return QUIT
    if not sys.stdin.isatty():
        console.print(Text(answer))  # a pipe does not echo input
    return answer


def plain(value: Any) -> str:
    """Return the value as text with control characters, which a model may write, made visible."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode()
        for c in str(value)
    )


def play_episode(env: gym.Env, task: Mapping[str, Any], max_steps: int, console: Console) -> None:
    """Play an episode until it ends or the player quits.

    `task` has the arguments of the reset, which select the task; `max_steps` is the step limit.
    """
    observation, info = env.reset(**task)
    console.print(Text(f"A number or a command is a step, {QUIT!r} ends the game.", "dim"))
    steps, done = 0, False
    while not done:
        left = max_steps - steps
        prompt = f"{left} {'step' if left == 1 else 'steps'} left > "
        action = read_action(observation, info["admissible_actions"], prompt, console)
        if action is None:
            break
        observation, _, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        steps += 1
        if info["inadmissible"]:
            console.print(Text(f"{plain(action)} had no effect.", "yellow"))
    if done:
        console.print(Text(f"\n{plain(observation)}"))
    if rows := score_rows(info):
        console.print(make_table([{"part": name, "value": value} for name, value in rows]))
    count = f"{steps} {'step' if steps == 1 else 'steps'}"
    if info["won"]:
        console.print(Text(f"Won in {count}.", "bold green"))
    else:
        why = "the goal is not reached" if done else "you left"
        console.print(Text(f"Lost: {why} after {count}.", "bold red"))


def as_action(text: str, admissible: Sequence[str]) -> str:
    """Return the action that a person wrote: in WebShop, plain words are a search."""
    prefixes = ("search[", "click[")
    in_store = all(action.startswith(prefixes) for action in admissible)
    return f"search[{text}]" if in_store and not text.startswith(prefixes) else text


def read_action(
    observation: str, admissible: Sequence[str], prompt: str, console: Console
) -> str | None:
    """Print the observation and the numbered actions, and ask until one is entered.

    Returns:
        The action; None if the player quits.
    """
    console.print(Text(f"\n{plain(observation)}"))
    numbered = {str(number): action for number, action in enumerate(admissible, start=1)}
    items = [Text(f"{number:>3} {plain(action)}") for number, action in numbered.items()]
    console.print(Columns(items, column_first=True, padding=(0, 2)))
    while True:
        answer = ask(console, prompt)
        if answer == QUIT:
            return None
        if answer and ANY_ACTION in admissible:  # numbers too
            return answer
        if numbered.get(answer) == ANY_SEARCH:
            console.print(Text("Write the words to search for."))
        elif answer in numbered:
            return numbered[answer]
        elif answer.isdecimal():
            console.print(Text(f"There is no action {answer}: 1 to {len(admissible)}."))
        elif answer:
            return as_action(answer, admissible)


def score_rows(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the parts of a WebShop score as text; empty without a purchase."""
    details = info.get("score_details")
    parts = {**details, "score": info["task_score"]} if details else {}
    return [(k, f"{v:.3f}" if isinstance(v, float) else plain(v)) for k, v in parts.items()]
