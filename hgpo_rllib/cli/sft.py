"""`hgpo sft`: supervised fine-tuning on demonstrations."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from env_wrappers.files import json_hash, write_atomically
from hgpo_rllib.cli.common import Overrides, RunFile, progress
from hgpo_rllib.config import load_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.run.job import check_is_kept
from hgpo_rllib.run.lock import locked

if TYPE_CHECKING:
    from hgpo_rllib.run.fine_tuning import Demonstration


def sft(
    config: RunFile,
    demonstrations: Annotated[
        Path,
        typer.Argument(
            help="JSON lines or parquet, as written by `hgpo data demos` or `hgpo data export`"
        ),
    ],
    output: Annotated[Path, typer.Argument(help="directory of the fine-tuned model to create")],
    overrides: Overrides = None,
    epochs: Annotated[int, typer.Option(min=1, help="passes over the demonstrations")] = 2,
    lr: Annotated[float, typer.Option(min=0, help="peak learning rate")] = 1e-4,
    batch_size: Annotated[int, typer.Option(min=1, help="demonstrations per optimizer step")] = 16,
    micro_batch_size: Annotated[int, typer.Option(min=1, help="demonstrations per pass")] = 4,
) -> None:
    """Fine-tune CONFIG's model on demonstrations; the same command resumes an interrupted one.

    `hgpo train CONFIG model.model_path=OUTPUT` then trains it.
    """
    settings = load_config(config, overrides or [])
    path = settings.model.model_path
    if path is None:
        raise ConfigError("set model.model_path to the model to fine-tune, a directory or a name")
    if output.exists():
        raise ConfigError(f"{output} exists: name a new directory, or remove it")
    check_is_kept("output", output)
    if not (math.isfinite(lr) and lr > 0):
        raise ConfigError(f"--lr {lr}: give a finite number above 0")
    if batch_size % micro_batch_size:
        raise ConfigError(
            f"--batch-size {batch_size}: give a multiple of --micro-batch-size {micro_batch_size}"
        )
    from hgpo_rllib.environments.checks import check_templates
    from hgpo_rllib.models import load_chat_tokenizer
    from hgpo_rllib.run.fine_tuning import fine_tune, read_demonstrations
    from hgpo_rllib.run.inputs import check_model

    shown = read_demonstrations(demonstrations)
    _check_context(settings.agent.context, demonstrations, shown)
    check_model(path)
    load_chat_tokenizer(path)
    check_templates(settings.agent)
    steps = sum(len(demonstration.messages) // 2 for demonstration in shown)
    games = len({demonstration.game for demonstration in shown})
    typer.echo(f"{steps} demonstrated steps of {games} games")
    numbers = epochs, lr, batch_size, micro_batch_size
    checkpoints = output.with_name(f"{output.name}.partial")
    with locked(checkpoints):
        _check_same(checkpoints, [settings.model_dump(), numbers, [vars(d) for d in shown]])
        again = "repeat the command to continue at its last checkpoint"
        with progress("fine-tuning", interrupted=again, bar=False):
            result = fine_tune(settings, shown, output, checkpoints, *numbers, _print_log)
    shutil.rmtree(checkpoints)
    for name, value in result.items():
        typer.echo(f"{name.replace('_', ' ')}: {value:.4f}")
    typer.echo(f"model: {output}")


def _check_context(context: str, file: Path, demonstrations: Sequence["Demonstration"]) -> None:
    """Refuse conversations for a window, and separate steps for conversations.

    Rendered prompts are as the agent wrote them: they suit any context.
    """
    conversations = any(len(demonstration.messages) > 2 for demonstration in demonstrations)
    if context == "window" and conversations:
        raise ConfigError(
            f"agent.context=window: {file} has conversations: set agent.context=conversation"
        )
    if context == "conversation" and not (conversations or demonstrations[0].rendered):
        raise ConfigError(
            f"agent.context=conversation: {file} has separate steps: set agent.context=window, or "
            "write conversations with `hgpo data demos` and this setting"
        )


def _check_same(checkpoints: Path, inputs: list[Any]) -> None:
    """Refuse to resume with other inputs than those of the interrupted command."""
    digest = json_hash(inputs)
    file = checkpoints / "inputs.sha256"
    if file.is_file() and file.read_text() != digest:
        raise ConfigError(
            f"{checkpoints} was written by a command with other settings or demonstrations: repeat "
            "that command, or remove the directory"
        )
    if not file.is_file():
        write_atomically(file, digest)


def _print_log(values: dict[str, float]) -> None:
    shown = {"loss": "loss", "eval_loss": "validation loss"}
    for key, name in shown.items():
        if key in values:
            typer.echo(
                f"step {values['step']:.0f} of {values['steps']:.0f}: {name} {values[key]:.4f}"
            )
