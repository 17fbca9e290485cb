"""Exceptions of all environments."""


class DataError(ValueError):
    """Task data is unusable; the one-line message names the item and the remedy."""
