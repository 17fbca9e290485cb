"""The section `model` of a run file."""

from typing import Literal

from pydantic import Field

from hgpo_rllib.section import Section


class ModelSettings(Section):
    """The language model."""

    model_path: str | None = None
    """HuggingFace directory or model name. null: the pocket model of the section `warm_start`."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Data type of the served weights. The learner always keeps float32 weights."""
    lora_rank: int = Field(0, ge=0, le=512)
    """Rank of the LoRA adapters on all linear layers except the output head. Only the adapters
    are trained, and the reference model needs no additional memory. 0: no LoRA, all parameters
    are trained."""
    lora_alpha: int = Field(32, ge=1)
    """LoRA alpha: the output of the adapters is scaled by lora_alpha / lora_rank."""
