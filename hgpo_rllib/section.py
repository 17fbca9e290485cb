"""What every section of the settings is made of, and the errors that end a command in one line."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
"""NumPy, and with it RLlib and vLLM, takes no other seeds."""


class ConfigError(ValueError):
    """Bad input to a command: one line that names the thing and the remedy (exit code 2)."""


class Section(BaseModel):
    """Base of all sections: unknown keys are errors; docstrings under fields are their help."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class RunStoppedError(RuntimeError):
    """A run ended itself: one line that says why, and how to go on (exit code 1)."""
