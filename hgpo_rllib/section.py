"""Base class and field types of the settings sections."""

import os
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from env_wrappers.files import check_name

Name = Annotated[str, AfterValidator(check_name)]
"""Text that can be part of a path."""
Folder = Annotated[str, AfterValidator(os.path.expanduser)]
"""Path of a folder; `~` is the home directory."""
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
"""Seeds that NumPy accepts, and with it RLlib and vLLM."""


class Section(BaseModel):
    """Base class of all sections. Unknown keys are errors; field docstrings are the help text."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )
