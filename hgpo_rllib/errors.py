"""Errors that a command reports in one line."""


class ConfigError(ValueError):
    """Bad input to a command; the message names the input and the remedy (exit code 2)."""


class RunStoppedError(RuntimeError):
    """The run stopped itself; the message says why and how to continue (exit code 1)."""
