"""Terminal input and output; standard input may be a pipe."""

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

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
