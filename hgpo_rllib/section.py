"""What every section of the settings is made of, and the errors that end a command in one line."""

from pydantic import BaseModel, ConfigDict


class ConfigError(ValueError):
    """Bad input to a command: one line that names the thing and the remedy (exit code 2)."""


class Section(BaseModel):
    """Base of all sections: unknown keys are errors; docstrings under fields are their help."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class RunStoppedError(RuntimeError):
    """A run ended itself: one line that says why, and how to go on (exit code 1)."""
