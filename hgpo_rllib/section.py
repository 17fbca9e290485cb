"""Base class of the settings sections, and errors that a command reports in one line."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
"""Seeds that NumPy accepts, and with it RLlib and vLLM."""


class ConfigError(ValueError):
    """Bad input to a command; the message names the input and the remedy (exit code 2)."""


class Section(BaseModel):
    """Base class of all sections. Unknown keys are errors; field docstrings are the help text."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class RunStoppedError(RuntimeError):
    """The run stopped itself; the message says why and how to continue (exit code 1)."""
