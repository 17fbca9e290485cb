"""`hgpo sft`: supervised fine-tuning of a HuggingFace model on demonstrations.

The training loop is transformers' `Trainer`. Prompts are encoded as `TokenRenderer` encodes them in
training, so the model learns on exactly the token ids that the agent uses.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import (
    DataCollatorForSeq2Seq,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging as transformers_logging

from env_wrappers.datasets import new_directory
from env_wrappers.errors import DataError, one_line
from env_wrappers.files import sync_folder
from hgpo_rllib.agent import TokenRenderer
from hgpo_rllib.config import RunConfig
from hgpo_rllib.jsonl import read_jsonl
from hgpo_rllib.learner.host_memory import set_up_host_memory
from hgpo_rllib.learner.lora import adapter_config, add_lora, merged_state
from hgpo_rllib.models import checkpoint_form, load_chat_tokenizer, load_model, save_model
from hgpo_rllib.settings.learner import resolve_compute_dtype

NO_LOSS = -100  # label of tokens without loss in transformers
HELD_OUT = 0.05
"""Share of the games whose steps are kept for the validation loss."""


@dataclass(frozen=True)
class Demonstration:
    """A demonstrated step, or an episode as a conversation."""

    game: str
    messages: tuple[str, ...]
    """Messages to the model and its responses, alternating."""
    rendered: bool = False
    """Whether the first message has the chat template."""
    truncated: bool = False
    """Whether the response was cut at the token limit, so that it has no end token."""


def read_demonstrations(file: Path) -> list[Demonstration]:
    """Read JSON lines or parquet with ``prompt`` and ``response``, or JSON lines with ``messages``.

    ``game`` is optional. ``rendered_prompt``, in place of ``prompt``, has the chat template, as
    `hgpo data export` writes it. ``messages`` are alternately of the roles user and assistant, as
    `hgpo data demos` writes them.

    Raises:
        ResultsError: the file cannot be read.
        DataError: a line has no such texts, or there are no lines.
    """
    if not file.is_file():
        raise DataError(f"{file} does not exist; `hgpo data demos` writes demonstrations")
    found: list[Demonstration] = []
    for number, row in enumerate(_rows(file), start=1):
        rendered = "rendered_prompt" in row
        if "messages" in row:
            texts = _contents(row["messages"])
        else:
            texts = [row.get("rendered_prompt" if rendered else "prompt"), row.get("response")]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise DataError(
                f"{file}: line {number} needs the texts `prompt` and `response`, or `messages` of "
                "the roles user and assistant in turn"
            )
        truncated = row.get("response_truncated") == 1  # NaN or null if not recorded
        found.append(Demonstration(str(row.get("game", number)), tuple(texts), rendered, truncated))
    if not found:
        raise DataError(f"{file} has no demonstrations")
    return found


def _rows(file: Path) -> Iterable[dict[str, Any]]:
    if file.suffix != ".parquet":
        return read_jsonl(file)
    try:
        return pd.read_parquet(file).to_dict("records")
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is not a readable parquet file: {one_line(error)}") from None


def _contents(messages: Any) -> list[Any]:
    """Return the contents of messages; empty if they are not alternately of user and assistant."""
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        return []
    roles = [message.get("role") for message in messages]
    wanted = ["user", "assistant"] * (len(messages) // 2)
    return [message.get("content") for message in messages] if roles == wanted else []


def encode(
    renderer: TokenRenderer, demonstrations: Sequence[Demonstration]
) -> list[dict[str, list[int]]]:
    """Return token ids and labels; only responses and their end tokens have a loss.

    A prompt that is too long loses its beginning, as in the rollout. A conversation ends before the
    turn whose prompt would be too long.
    """
    rows = []
    for demonstration in demonstrations:
        first, *others = demonstration.messages[::2]
        prompt = renderer.encode(first if demonstration.rendered else renderer.render(first))
        parts = [prompt[-renderer.max_prompt_tokens :], *map(renderer.encode_follow_up, others)]
        ids: list[int] = []
        labels: list[int] = []
        for part, response in zip(parts, demonstration.messages[1::2], strict=True):
            if len(ids) + len(part) > renderer.max_prompt_tokens:
                break
            encoded = renderer.encode if demonstration.truncated else renderer.encode_response
            answer = encoded(response)
            ids += part + answer
            labels += [NO_LOSS] * len(part) + answer
        rows.append({"input_ids": ids, "labels": labels})
    return rows


def split_by_game(
    demonstrations: Sequence[Demonstration],
) -> tuple[list[Demonstration], list[Demonstration]]:
    """Return the steps to train on, and those of `HELD_OUT` of the games, at least of one."""
    games = sorted({step.game for step in demonstrations})
    held: set[str] = set()
    if len(games) > 1:
        count = max(1, round(HELD_OUT * len(games)))
        held = set(games[:: len(games) // count][:count])
    train = [step for step in demonstrations if step.game not in held]
    return train, [step for step in demonstrations if step.game in held]


def fine_tune(
    config: RunConfig,
    demonstrations: Sequence[Demonstration],
    output: Path,
    checkpoints: Path,
    epochs: int,
    lr: float,
    batch_size: int,
    micro_batch_size: int,
    on_log: Callable[[dict[str, float]], None] = lambda values: None,
) -> dict[str, float]:
    """Fine-tune `config.model` and write it to `output` in HuggingFace format, adapters merged.

    A checkpoint is written after every tenth of the optimizer steps, and the same call resumes from
    the last one.

    Args:
        config: the settings of model, LoRA and prompts, `learner.compute_dtype` and the seed.
        demonstrations: steps or conversations to learn.
        output: directory to create.
        checkpoints: directory of checkpoints.
        epochs: passes over the demonstrations.
        lr: peak learning rate. It warms up over 5 % of the steps and decays linearly to 0.
        batch_size: demonstrations per optimizer step, a multiple of `micro_batch_size`.
        micro_batch_size: demonstrations per pass through the model.
        on_log: receives the metrics that `Trainer` logs.

    Returns:
        ``train_loss`` and, if there are two games or more, ``validation_loss``: nats per token.
    """
    transformers_logging.disable_progress_bar()
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        set_up_host_memory()
    path = str(config.model.model_path)
    tokenizer, model = load_chat_tokenizer(path), load_model(path)
    if tokenizer.pad_token is None:  # padding has neither attention nor loss
        tokenizer.pad_token = tokenizer.eos_token
    if rank := config.model.lora_rank:
        add_lora(model, rank, config.model.lora_alpha, config.seed)
    renderer = TokenRenderer(tokenizer, config.agent)
    train, held = (encode(renderer, part) for part in split_by_game(demonstrations))
    arguments = TrainingArguments(
        str(checkpoints),
        num_train_epochs=epochs,
        learning_rate=lr,
        lr_scheduler_type="linear",
        warmup_steps=0.05,
        per_device_train_batch_size=micro_batch_size,
        gradient_accumulation_steps=batch_size // micro_batch_size,
        per_device_eval_batch_size=micro_batch_size,
        train_sampling_strategy="group_by_length",  # little padding
        eval_strategy="epoch" if held else "no",
        save_steps=0.1,  # shares of all steps
        save_total_limit=1,
        logging_steps=0.01,
        bf16=resolve_compute_dtype(config.learner.compute_dtype, on_gpu) == "bfloat16",
        use_cpu=not on_gpu,
        gradient_checkpointing=on_gpu,
        gradient_checkpointing_kwargs={"use_reentrant": False},  # as torch recommends
        seed=config.seed,
        data_seed=config.seed,
        dataloader_pin_memory=on_gpu,
        report_to=[],
        disable_tqdm=True,
    )
    if on_gpu:
        arguments._n_gpu = 1  # with more, Trainer would multiply the batch by their number
    trainer = Trainer(
        model,
        arguments,
        DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=NO_LOSS),
        train_dataset=train,
        eval_dataset=held or None,
        callbacks=[_Log(on_log)],
    )
    trainer.remove_callback(PrinterCallback)  # `on_log` receives what it would print
    last = last_checkpoint(checkpoints)
    result = {"train_loss": trainer.train(resume_from_checkpoint=last).training_loss}
    if last:  # that is the loss of the steps after the checkpoint
        logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        result["train_loss"] = sum(logged) / len(logged)
    if held:
        state = trainer.state
        last_rows = [row for row in state.log_history if row["step"] == state.global_step]
        validated = [row["eval_loss"] for row in last_rows if "eval_loss" in row]
        # There is none if all steps were done before an interruption.
        result["validation_loss"] = validated[-1] if validated else trainer.evaluate()["eval_loss"]
    weights: dict[str, Any] = {name: p.detach() for name, p in model.state_dict().items()}
    if rank:
        weights = merged_state(model, weights, adapter_config(model))
    with new_directory(output) as partial:
        save_model(path, checkpoint_form(weights, model.config), str(partial))
        sync_folder(partial)  # the command removes its checkpoints next
    return result


def last_checkpoint(folder: Path) -> str | None:
    """Return the newest complete checkpoint of `Trainer` in `folder`, None if there is none.

    `get_last_checkpoint` also returns one that was being written when the process was killed.
    """
    # Trainer writes this file last.
    complete = [
        file.parent for file in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{TRAINER_STATE_NAME}")
    ]
    newest = max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
    return None if newest is None else str(newest)


class _Log(TrainerCallback):
    """Passes on what `Trainer` logs."""

    def __init__(self, on_log: Callable[[dict[str, float]], None]):
        self._on_log = on_log

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self._on_log({**(logs or {}), "step": state.global_step, "steps": state.max_steps})
