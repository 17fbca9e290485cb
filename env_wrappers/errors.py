"""Errors of all environments, and messages of other errors."""

from collections.abc import Collection


class DataError(ValueError):
    """Task data is unusable; the one-line message names the item and the remedy."""


def one_line(error: object) -> str:
    """Return an error's message on one line of at most 500 characters."""
    return " ".join(str(error).split())[:500]


def describe_error(error: BaseException) -> str:
    """Return the type and message of an error on one line."""
    return f"{type(error).__name__}: {one_line(error)}"


def check_known(what: str, value: object, known: Collection[str]) -> None:
    """Raise DataError if an argument is not one of the known values."""
    if value not in known:
        raise DataError(f"unknown {what} {value!r}: choose {', '.join(known)}")
