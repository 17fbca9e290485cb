"""A Gymnasium space for text with an unknown alphabet."""

import string
from typing import Any, NoReturn

import numpy as np
from gymnasium.spaces import Space, flatdim, flatten, flatten_space, unflatten
from gymnasium.vector.utils import create_empty_array

_PRINTABLE = tuple(string.printable)
_SAMPLE = 1_000  # maximum length of a sample


class AnyText(Space[str]):
    """A string of any characters, optionally of at most ``max_length`` characters.

    This is not a ``gymnasium.spaces.Text``, because that needs an explicit alphabet: code that
    handles ``Text`` encodes characters by it and would fail or return other text here. Such strings
    have no fixed size as an array, so Gymnasium functions that need one refuse this space:
    ``AsyncVectorEnv`` works with ``shared_memory=False``, the ``flatten`` functions do not.
    """

    def __init__(
        self, max_length: int | None = None, seed: int | np.random.Generator | None = None
    ) -> None:
        if max_length is not None and max_length < 0:
            raise ValueError(f"max_length must be at least 0, not {max_length}")
        self.max_length = max_length
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False; see the class."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return up to 1,000 printable ASCII characters; raise an error if a mask is given."""
        if mask is not None or probability is not None:
            raise ValueError(f"{self} takes neither a mask nor probabilities: it has no alphabet")
        longest = _SAMPLE if self.max_length is None else min(self.max_length, _SAMPLE)
        length = self.np_random.integers(longest + 1)
        return "".join(self.np_random.choice(_PRINTABLE, size=length))

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a string of at most ``max_length`` characters."""
        return isinstance(x, str) and (self.max_length is None or len(x) <= self.max_length)

    def __eq__(self, other: object) -> bool:
        """Return whether ``other`` contains the same strings."""
        return isinstance(other, AnyText) and self.max_length == other.max_length

    def __repr__(self) -> str:
        """Return the expression that creates this space."""
        return f"AnyText({'' if self.max_length is None else self.max_length})"


@create_empty_array.register(AnyText)
def _create_empty_array(space: AnyText, n: int = 1, fn: Any = None) -> tuple[str, ...]:
    return ("",) * n


# Without these, Gymnasium would raise "Unknown space", or blame a Graph or Sequence.
# (mypy: Gymnasium declares the first argument of `flatten` as a generic Space.)
@flatdim.register(AnyText)
@flatten.register(AnyText)
@unflatten.register(AnyText)
@flatten_space.register(AnyText)
def _refuse_to_flatten(space: AnyText, x: Any = None) -> NoReturn:  # type: ignore[misc]
    raise ValueError(
        f"{space} cannot be flattened: text of any script has no fixed size as an array; "
        "tokenize the text instead"
    )
