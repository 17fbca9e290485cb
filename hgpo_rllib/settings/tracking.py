"""The section `tracking` of a run file."""

from typing import Literal

from hgpo_rllib.section import Section


class TrackingSettings(Section):
    """Experiment trackers, in addition to the run directory (docs/integrations.md)."""

    trackers: list[Literal["wandb", "mlflow"]] = []
    """Trackers that receive all metrics, through Ray's integrations. Set credentials as
    environment variables ($WANDB_API_KEY, $MLFLOW_TRACKING_TOKEN, …), not as settings."""
    project: str = "hgpo"
    """Project (W&B) or experiment (MLflow) of the run."""
