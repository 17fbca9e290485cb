"""What a run needs before it starts: generated games and a pocket model, made once and kept."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from env_wrappers.alfworld.games import TASK_TYPES
from env_wrappers.alfworld.generator import GENERATOR_VERSION, GenerationSpec, generate
from hgpo_rllib.agent.templates import load_template
from hgpo_rllib.config import RunConfig
from hgpo_rllib.warmstart.cloning import clone, encode, make_model
from hgpo_rllib.warmstart.demonstrations import DemonstrationSpec, demonstrate_all
from hgpo_rllib.warmstart.tokenizer import train_tokenizer

Progress = Callable[[int, int], None]
TOKENIZER_SAMPLE = 4000  # examples that the tokenizer is trained on
RECIPE = ("explorer.py", "demonstrations.py", "tokenizer.py", "cloning.py")
WARM_START_SEED_OFFSET = 1000  # games of demonstrations are never games of training or evaluation


def games_path(config: RunConfig) -> Path:
    """Where the generated games of this config are kept."""
    shape = {"games": config.games.model_dump(), "generator_version": GENERATOR_VERSION}
    return Path(config.cache) / f"alfworld-games-{_digest(shape)}"


def make_games(config: RunConfig, on_progress: Progress) -> Path:
    """Generate the games of `config.games` unless they are there; returns their directory."""
    path = games_path(config)
    games = config.games
    splits = {
        "train": games.train,
        "valid_seen": games.valid_seen,
        "valid_unseen": games.valid_unseen,
    }
    generate(path, _spec(config, splits, games.seed), on_progress, workers=_workers())
    return path


def model_path(config: RunConfig) -> Path:
    """Where the pocket model of this config is kept: its name hashes what shapes it, code too."""
    shape = {
        "warm_start": config.warm_start.model_dump(),
        "games": config.games.model_dump(exclude={"train", "valid_seen", "valid_unseen"}),
        "generator_version": GENERATOR_VERSION,
        "prompt": _template_source(config.agent.prompt),
        "memory_length": config.agent.memory_length,
        "max_length": config.agent.max_prompt_tokens + config.agent.max_response_tokens,
        "recipe": [(Path(__file__).parent / name).read_text() for name in RECIPE],
    }
    return Path(config.cache) / f"pocket-model-{_digest(shape)}"


def make_demonstrations(config: RunConfig, on_progress: Progress) -> list[tuple[str, str]]:
    """Demonstrations on games of their own: prompts and responses."""
    warm = config.warm_start
    assert config.agent.memory_length is not None, "RunConfig ties it where it is not set"
    with_seed = _spec(config, {"train": warm.games}, config.games.seed + WARM_START_SEED_OFFSET)
    games = model_path(config).with_name(model_path(config).name + f".games-{os.getpid()}")
    try:
        generate(games, with_seed, lambda n, total: on_progress(n, 2 * total), workers=_workers())
        spec = DemonstrationSpec(
            games,
            prompt=config.agent.prompt,
            memory_length=config.agent.memory_length,
            max_steps=warm.max_steps,
            repeats=warm.demonstrations,
            noise=warm.action_noise,
            seed=warm.seed,
        )
        return demonstrate_all(spec, _workers(), lambda n, total: on_progress(total + n, 2 * total))
    finally:
        shutil.rmtree(games, ignore_errors=True)


def make_model_directory(
    config: RunConfig, examples: list[tuple[str, str]], on_progress: Callable[[int, float], None]
) -> Path:
    """Train tokenizer and pocket model on `examples`; write both in HuggingFace format."""
    warm = config.warm_start
    torch.manual_seed(warm.seed)
    sample = examples[:: max(1, len(examples) // TOKENIZER_SAMPLE)]
    tokenizer = train_tokenizer((text for pair in sample for text in pair), warm.vocabulary)
    max_length = config.agent.max_prompt_tokens + config.agent.max_response_tokens
    model = make_model(tokenizer, warm.hidden_size, warm.layers, max_length)
    clone(
        model,
        encode(tokenizer, examples),
        optimizer_steps=warm.optimizer_steps,
        batch_size=warm.batch_size,
        lr=warm.lr,
        prompt_loss=warm.prompt_loss,
        seed=warm.seed,
        on_progress=on_progress,
    )
    path = model_path(config)
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    if path.is_dir():  # another run made the same model meanwhile
        shutil.rmtree(partial)
    else:
        partial.rename(path)
    return path


def _spec(config: RunConfig, splits: dict[str, int], seed: int) -> GenerationSpec:
    return GenerationSpec(
        seed=seed,
        splits=splits,
        task_types=tuple(config.games.task_types or TASK_TYPES),
        rooms=tuple(config.games.rooms),
        max_receptacles=config.games.max_receptacles,
    )


def _template_source(prompt: str) -> str:
    return Path(load_template(prompt).filename or "").read_text()


def _workers() -> int:
    return max(1, os.cpu_count() or 1)


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]
