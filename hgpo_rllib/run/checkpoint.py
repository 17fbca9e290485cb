"""Find the model and the settings of a checkpoint given on the command line."""

from pathlib import Path

from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.run.checkpoint_files import MANIFEST, DamagedFolderError, check_folder
from hgpo_rllib.run.directory import RunDirectory
from hgpo_rllib.run.inputs import check_model


def load_policy_config(checkpoint: str, overrides: list[str]) -> RunConfig:
    """Return settings whose `model.model_path` is the policy `checkpoint`.

    Args:
        checkpoint: a run directory (its last checkpoint and its settings), ``best`` or
            ``checkpoint`` in one, another HuggingFace directory, or a name on the hub (with the
            default settings).
        overrides: settings as ``section.key=value``.

    Adapters are merged into a checkpoint's weights, so it is served without LoRA.

    Raises:
        ConfigError: the policy does not exist or is damaged, or an override is invalid.
    """
    model, run_file = Path(checkpoint), run_file_of(checkpoint)
    if any(override.partition("=")[0] == "model.model_path" for override in overrides):
        raise ConfigError(f"model.model_path: the model is CHECKPOINT, {checkpoint}: leave it out")
    config = load_config(run_file, overrides)
    if run_file == model / "config.yaml":
        model = RunDirectory(model).checkpoint
    if run_file is not None and not model.is_dir():
        raise ConfigError(f"{checkpoint} holds no checkpoint: none has been written yet")
    if (model / MANIFEST).exists():  # only runs write one
        _check_intact(model)
    given = checkpoint if model == Path(checkpoint) else str(model)
    check_model(given, "CHECKPOINT")
    settings = config.model.model_copy(update={"model_path": str(model), "lora_rank": 0})
    return config.model_copy(update={"model": settings})


def run_file_of(checkpoint: str) -> Path | None:
    """Return the config.yaml of the run that `checkpoint` belongs to, or None."""
    folder = Path(checkpoint)
    run = folder.parent if folder.name in ("best", "checkpoint") else folder
    return run / "config.yaml" if (run / "config.yaml").is_file() else None


def _check_intact(folder: Path) -> None:
    """Raise ConfigError if the policy of a run is damaged; the message names an intact one."""
    try:
        check_folder(folder)
    except DamagedFolderError as error:
        run = RunDirectory(folder.parent)
        other = run.checkpoint if folder.name == run.best.name else run.best
        remedy = f", or use {other}" if other.is_dir() else ""
        raise ConfigError(f"{error}: restore it from a copy{remedy}") from error
