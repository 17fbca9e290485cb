"""A Gymnasium space for text with an unknown alphabet, and how environments offer free text."""

import string
from typing import Any

from gymnasium.spaces import Space
from gymnasium.vector.utils import create_empty_array

ANY_ACTION = "any text"
"""Offered by an environment that accepts every action."""
ANY_SEARCH = "search[<your query>]"
"""Offered by WebShop for all searches."""
_PRINTABLE = tuple(string.printable)
_LONGEST_SAMPLE = 1_000  # characters


class AnyText(Space[str]):
    """Any string.

    This is not a ``gymnasium.spaces.Text``, because that needs an explicit alphabet: code that
    handles ``Text`` encodes characters by it and would fail or return other text here. Text has no
    fixed size as an array: ``AsyncVectorEnv`` works with ``shared_memory=False``, the ``flatten``
    functions raise an error.
    """

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False; see the class."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return up to 1,000 printable ASCII characters; there is no alphabet to mask."""
        length = self.np_random.integers(_LONGEST_SAMPLE + 1)
        return "".join(self.np_random.choice(_PRINTABLE, size=length))

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a string."""
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        """Return whether ``other`` is such a space."""
        return isinstance(other, AnyText)

    def __repr__(self) -> str:
        """Return the expression that creates this space."""
        return "AnyText()"


@create_empty_array.register(AnyText)
def _create_empty_array(space: AnyText, n: int = 1, fn: Any = None) -> tuple[str, ...]:
    return ("",) * n
