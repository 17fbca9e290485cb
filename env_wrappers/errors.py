"""What all environments raise."""


class DataError(ValueError):
    """Task data that cannot be used; the message names the thing and the remedy on one line."""
