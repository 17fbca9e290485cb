"""Spaces for text whose characters nobody can list in advance."""

import string
from typing import Any

from gymnasium.spaces import Text


class AnyText(Text):
    """A string of at most ``max_length`` characters, of any script.

    ``gymnasium.spaces.Text`` needs its alphabet spelled out, yet a language model may write any
    character: this space samples printable ASCII and contains every string that is short enough.
    """

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a string of at most ``max_length`` characters."""
        return isinstance(x, str) and len(x) <= self.max_length

    def __repr__(self) -> str:
        """Return the space as the call that makes it."""
        return f"AnyText({self.max_length})"
