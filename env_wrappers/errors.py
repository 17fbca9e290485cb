"""Errors of all environments."""

from collections.abc import Collection


class DataError(ValueError):
    """Task data is unusable; the one-line message names the item and the remedy."""


def check_known(what: str, value: object, known: Collection[str]) -> None:
    """Raise DataError if an argument is not one of the known values."""
    if value not in known:
        raise DataError(f"unknown {what} {value!r}: choose {', '.join(known)}")
