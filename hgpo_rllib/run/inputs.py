"""What a user can get wrong, checked before Ray and torch are imported, which takes seconds."""

from transformers import AutoConfig

from env_wrappers.alfworld.games import find_games
from hgpo_rllib.config import ConfigError, RunConfig


def check_inputs(config: RunConfig) -> None:
    """Raise ConfigError or DataError for a model or games that are not there."""
    if config.model.model_path is not None:
        check_model_path(config.model.model_path)
    if config.env.data is not None:
        for split in dict.fromkeys([config.env.train_split, *config.evaluation.splits]):
            find_games(config.env.data, split, config.env.task_types)


def check_model_path(model_path: str) -> None:
    """Raise ConfigError unless `model_path` is a HuggingFace directory or a name that resolves."""
    try:
        AutoConfig.from_pretrained(model_path)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"model.model_path: {model_path} is no HuggingFace directory or name ({reason})"
        ) from error
