"""Record what a run was started with, and compare when it is resumed."""

import contextlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from ray.tune.utils import flatten_dict

from env_wrappers.files import json_hash, validate_json, write_json
from hgpo_rllib.advantages.estimators import CRITIC_OUTPUTS
from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments import find_environment
from hgpo_rllib.environments.checks import make_environment
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.reporting.console import TrainingConsole
from hgpo_rllib.run.checkpoint_files import checksum
from hgpo_rllib.run.directory import RunDirectory
from hgpo_rllib.run.inputs import MODEL_FILES, WEIGHTS
from hgpo_rllib.section import Section

FIXED = (
    "env.env_id",
    "env.train_split",
    "model.lora_rank",
    "model.lora_alpha",
    "learner.critic",
    "learner.critic_layers",
)
"""Settings that must match the checkpoint's parameters and its position in the task order."""


class StartRecord(Section):
    """Content of started.json."""

    settings: dict[str, Any]
    games: dict[str, str]
    """Hash of the ordered games of each split, for environments that hash their data."""
    model: str
    """Hash of the files of the initial model, or its name on the hub."""
    commit: str | None = None
    """Commit of the code; None if git finds none."""


def record_start(directory: RunDirectory, config: RunConfig, console: TrainingConsole) -> None:
    """Print which settings changed since the run was last started, and record the current ones.

    Raises:
        ConfigError: a change is incompatible with the checkpoint, such as different games or
            another model. Moving the same files to another path is allowed.
        DataError: the record of the last start is damaged.
    """
    with console.stage("hashing games and model"):
        now = StartRecord(
            settings=config.model_dump(mode="json"),
            games=_hash_games(config),
            model=_hash_model(str(config.model.model_path)),
            commit=git_commit(),
        )
    if (file := directory.started).is_file():
        before = validate_json(TypeAdapter(StartRecord), file.read_bytes(), str(file))
        old, new = (flatten_dict(start.settings, delimiter=".") for start in (before, now))
        changes = {
            key: f"{json.dumps(old.get(key))} -> {json.dumps(new.get(key))}"
            for key in dict.fromkeys([*old, *new])
            if old.get(key) != new.get(key)
        }
        if conflict := _conflict(before, now, changes):
            raise ConfigError(
                f"{directory.path} cannot resume from its checkpoint: {conflict}; restore it in "
                f"{directory.path / 'config.yaml'}, or start a new run"
            )
        notes = {"model.model_path": " (the same model)"}
        if now.games:
            notes["env.data"] = " (the same games)"
        for key, change in changes.items():
            note = notes.get(key, "")
            console.say(f"changed since the run was last started: {key} {change}{note}")
    write_json(directory.started, now.model_dump())


def _conflict(before: StartRecord, now: StartRecord, changes: Mapping[str, str]) -> str | None:
    """Return a change that is incompatible with the checkpoint, or None."""
    fixed = list(FIXED)
    change = changes.get("algorithm.estimator", "")
    if any(f'"{name}"' in change for name in CRITIC_OUTPUTS):
        fixed.append("algorithm.estimator")  # needs a critic with other outputs
    for key in fixed:
        if key in changes:
            return f"{key} changed: {changes[key]}"
    for split, games in now.games.items():
        if before.games.get(split, games) != games:
            return f"other games in {split} (env.data, env.options)"
    return "another model in model.model_path" if before.model != now.model else None


def _hash_games(config: RunConfig) -> dict[str, str]:
    env, environment = config.env, find_environment(config.env.env_id)
    hashes = {}
    for split in dict.fromkeys([env.train_split, *config.evaluation.splits]):
        with contextlib.closing(make_environment(env, split)) as made:
            games = environment.games(made, env, split)
        if games.data_hash is not None:
            hashes[split] = json_hash([games.names, games.data_hash])
    return hashes


def _hash_model(model: str) -> str:
    folder = Path(model)
    if not folder.is_dir():
        return model
    files = {file for pattern in (*WEIGHTS, *MODEL_FILES) for file in folder.glob(pattern)}
    sums = {file.name: [file.stat().st_size, checksum(file)] for file in sorted(files)}
    return json_hash(sums)


def git_commit() -> str | None:
    """Return the commit of the checkout that this code runs from, or None if git finds none."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        output = subprocess.check_output(
            command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, text=True, timeout=10
        )
        return output.strip() or None
    return None
