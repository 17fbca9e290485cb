"""Base class and field types of the settings sections."""

import os
from collections import Counter
from typing import Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

from env_wrappers.files import check_name

Name = Annotated[str, AfterValidator(check_name)]
"""Text that can be part of a path."""
Folder = Annotated[str, AfterValidator(os.path.expanduser)]
"""Path of a folder; `~` is the home directory."""
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
"""Seeds that NumPy accepts, and with it RLlib and vLLM."""


def check_unique(names: list[str] | None) -> list[str] | None:
    """Validate a list of names, or null: ValueError if one is given twice."""
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"{twice[0]} is named twice: name it once")
    return names


class Section(BaseModel):
    """Base class of all sections. Unknown keys are errors; field docstrings are the help text."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_not_flags(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for numbers; pydantic takes them for 1 and 0."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and {int, float}.intersection((kind, *get_args(kind))):
            raise ValueError("give a number, not true or false")
        return value
