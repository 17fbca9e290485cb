"""The terminal: what is shown in it, and what a person answers; standard input may be a pipe."""

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

QUIT = "quit"


def make_console() -> Console:
    """A console that leaves text as it is, and does not break the lines of a pipe."""
    return Console(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty())


def ask(console: Console, prompt: str) -> str:
    """Return the next line of input, stripped; at the end of the input, "quit"."""
    try:
        answer = console.input(Text(prompt, style="bold")).strip()
    except EOFError:
        console.print()
        return QUIT
    if not sys.stdin.isatty():
        console.print(Text(answer))  # a pipe shows no typing
    return answer


def plain(value: Any) -> str:
    """Show control characters, which a model may write, and do not send them to the terminal."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode()
        for c in str(value)
    )
