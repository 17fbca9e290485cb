"""`hgpo sft`: the training data, and the model that it writes."""

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from env_wrappers.alfworld.env import ALFWorldEnv
from env_wrappers.errors import DataError
from hgpo_rllib.agent import Memory, TokenRenderer, Turn
from hgpo_rllib.agent.parsing import parse_completion
from hgpo_rllib.cli.main import app
from hgpo_rllib.config import RunConfig, load_config, parse_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.models import load_model, load_tokenizer
from hgpo_rllib.run import fine_tuning
from hgpo_rllib.run.fine_tuning import (
    NO_LOSS,
    Demonstration,
    encode,
    fine_tune,
    last_checkpoint,
    read_demonstrations,
    split_by_game,
)
from hgpo_rllib.run.inputs import check_inputs
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.warmstart.cloning import make_model
from hgpo_rllib.warmstart.tokenizer import train_tokenizer

STEPS = [
    Demonstration(f"game {n}", (f"Task: {n}", f"<think>{n}</think><action>go to desk {n}</action>"))
    for n in range(8)
]
SETTINGS = (30, 1e-2, 4, 2)  # epochs, learning rate, batch and micro-batch size


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer that knows the demonstrations."""
    return train_tokenizer(["".join(step.messages) for step in STEPS] * 20, [], 320)


@pytest.fixture(scope="module")
def start(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a random model."""
    folder = tmp_path_factory.mktemp("start")
    torch.manual_seed(0)
    make_model(tokenizer, 32, 1, 64).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def config(start: Path, **model: object) -> RunConfig:
    """Return the settings of a run with this model."""
    return parse_config({"model": {"model_path": str(start), **model}})


def write(file: Path, steps: list[Demonstration]) -> Path:
    """Write demonstrations as JSON lines."""
    rows = [
        {"game": step.game, "prompt": step.messages[0], "response": step.messages[1]}
        for step in steps
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def loss_of(model_path: Path, steps: list[Demonstration]) -> float:
    """Return the mean loss of the response tokens, one sequence at a time."""
    model, renderer = load_model(str(model_path)), make_renderer(load_tokenizer(str(model_path)))
    losses: list[float] = []
    for row in encode(renderer, steps):
        ids, labels = torch.tensor(row["input_ids"]), np.array(row["labels"])
        with torch.no_grad():
            logp = model(input_ids=ids[None]).logits[0].log_softmax(-1)
        places = np.flatnonzero(labels != NO_LOSS)
        losses += [-logp[place - 1, ids[place]].item() for place in places]
    return float(np.mean(losses))


def make_renderer(tokenizer: PreTrainedTokenizerFast, **settings: Any) -> TokenRenderer:
    """Return the agents' renderer."""
    common: dict[str, Any] = {"prompt": "alfworld_compact", "memory_length": 2}
    return TokenRenderer(tokenizer, AgentSettings(**common | settings))


def test_token_ids_are_those_of_the_agent(tokenizer: PreTrainedTokenizerFast) -> None:
    """Prompt and response are tokenized as the agent does it, and only the response has a loss."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    renderer = make_renderer(tokenizer)
    given = "find a pen", "You see a pen.", ["take pen 1"]
    message = renderer.message(*given, step_count=0, history=[])
    (row,) = encode(renderer, [Demonstration("a", (message, "<action>look</action>"))])
    prompt = renderer.prompt(*given, Memory()).token_ids
    response = row["input_ids"][len(prompt) :]
    assert row["input_ids"][: len(prompt)] == prompt
    assert row["labels"] == [NO_LOSS] * len(prompt) + response
    assert tokenizer.decode(response) == "<action>look</action>" + tokenizer.eos_token
    rendered = Demonstration(
        "a", (renderer.render(message), "<action>look</action>"), rendered=True
    )
    assert encode(renderer, [rendered]) == [row]


@pytest.mark.parametrize("games", [1, 2, 30, 100])
def test_games_are_held_out_whole(games: int) -> None:
    """A twentieth of the games is held out, and at least one if there are several."""
    steps = [Demonstration(f"{n % games}", ("p", "r")) for n in range(3 * games)]
    train, held = split_by_game(steps)
    assert sorted(train + held, key=id) == sorted(steps, key=id)
    assert not {step.game for step in train} & {step.game for step in held}
    expected = 0 if games == 1 else max(1, round(games / 20))
    assert len({step.game for step in held}) == expected


@pytest.mark.parametrize("lora", [0, 4])
def test_it_learns_the_demonstrations(start: Path, tmp_path: Path, lora: int) -> None:
    """The loss falls for all parameters and for merged adapters; the tokenizer does not change."""
    logs: list[dict[str, float]] = []
    paths = tmp_path / "out", tmp_path / "kept"
    result = fine_tune(config(start, lora_rank=lora), STEPS, *paths, *SETTINGS, logs.append)
    train, held = split_by_game(STEPS)
    assert loss_of(tmp_path / "out", train) < loss_of(start, train) / (3 if lora == 0 else 1.2)
    assert result["validation_loss"] == pytest.approx(loss_of(tmp_path / "out", held), abs=1e-4)
    assert any("loss" in values for values in logs)
    assert sum("eval_loss" in values for values in logs) == SETTINGS[0]
    assert max(values["step"] for values in logs) == logs[0]["steps"] == 60
    with_tokens = [
        load_tokenizer(str(path))("go to desk 3")["input_ids"] for path in (start, tmp_path / "out")
    ]
    assert with_tokens[0] == with_tokens[1]


def test_a_tokenizer_without_a_padding_token(
    tokenizer: PreTrainedTokenizerFast, start: Path, tmp_path: Path
) -> None:
    """A model whose tokenizer has none, as Llama's, is fine-tuned and keeps its tokenizer."""
    model = Path(shutil.copytree(start, tmp_path / "model"))
    without = copy.deepcopy(tokenizer)
    without.pad_token = None
    without.save_pretrained(model)
    fine_tune(config(model), STEPS, tmp_path / "out", tmp_path / "kept", 1, *SETTINGS[1:])
    assert load_tokenizer(str(tmp_path / "out")).pad_token is None


def test_the_loss_of_a_finished_one(start: Path, tmp_path: Path) -> None:
    """If all steps were done before an interruption, the loss is that of these steps."""
    first, again = (
        fine_tune(config(start), STEPS, tmp_path / name, tmp_path / "kept", *SETTINGS)
        for name in ("a", "b")
    )
    assert again["train_loss"] == pytest.approx(first["train_loss"], rel=0.01)


def test_a_truncated_response_has_no_end_token(tokenizer: PreTrainedTokenizerFast) -> None:
    """The policy did not sample one."""
    steps = [replace(STEPS[0], truncated=truncated) for truncated in (True, False)]
    cut, whole = (row["input_ids"] for row in encode(make_renderer(tokenizer), steps))
    assert whole == [*cut, tokenizer.eos_token_id]


def test_passes_have_the_learners_type(start: Path, tmp_path: Path) -> None:
    """`learner.compute_dtype` sets the type; the loss of bfloat16 is close to that of float32."""
    losses = []
    for dtype in ("auto", "float32", "bfloat16"):
        folder = tmp_path / dtype
        learner = {"compute_dtype": dtype}
        settings = parse_config({"model": {"model_path": str(start)}, "learner": learner})
        result = fine_tune(settings, STEPS, folder / "out", folder / "kept", 3, *SETTINGS[1:])
        losses.append(result["train_loss"])
        assert load_model(str(folder / "out")).dtype == torch.float32
    assert losses[0] == losses[torch.cuda.is_available() + 1]
    assert losses[1] != losses[2] == pytest.approx(losses[1], rel=0.02)


def test_an_interrupted_one_resumes(start: Path, tmp_path: Path) -> None:
    """A resumed fine-tuning continues from its last checkpoint."""
    paths = tmp_path / "out", tmp_path / "kept"

    def stop(values: dict[str, float]) -> None:
        if values["step"] > 25:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fine_tune(config(start), STEPS, *paths, *SETTINGS, stop)
    assert not paths[0].exists()
    steps: list[float] = []
    fine_tune(config(start), STEPS, *paths, *SETTINGS, lambda row: steps.append(row["step"]))
    assert min(steps) == 25
    assert max(steps) == 60
    train, _ = split_by_game(STEPS)
    assert loss_of(paths[0], train) < loss_of(start, train) / 3


def test_an_incomplete_checkpoint_is_not_used(tmp_path: Path) -> None:
    """A checkpoint without trainer_state.json, which is written last, is ignored."""
    assert last_checkpoint(tmp_path / "none") is None
    for step, complete in ((5, True), (10, True), (15, False)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "optimizer.pt").touch()
        if complete:
            (folder / "trainer_state.json").touch()
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n', "line 1 needs the texts"),
        ('{"prompt": "a", "response": 3}\n', "line 1 needs the texts"),
        ('{"messages": [{"role": "user", "content": "a"}]}\n', "line 1 needs the texts"),
        ('{"messages": []}\n', "line 1 needs the texts"),
        ("", "has no demonstrations"),
    ],
)
def test_bad_demonstrations(tmp_path: Path, text: str, message: str) -> None:
    """Missing or malformed demonstrations raise a one-line error."""
    file = tmp_path / "demos.jsonl"
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        read_demonstrations(file)
    with pytest.raises(DataError, match="does not exist"):
        read_demonstrations(tmp_path / "none.jsonl")
    file = file.rename(tmp_path / "demos.parquet")
    with pytest.raises(DataError, match=r"demos\.parquet is not a readable parquet file"):
        read_demonstrations(file)


def sft(file: Path, output: Path, model: Path) -> list[str]:
    """Return the arguments of `hgpo sft`."""
    return ["sft", "alfworld_pocket", str(file), str(output), f"model.model_path={model}"]


class TestCommand:
    def test_it_writes_a_model(self, start: Path, tmp_path: Path) -> None:
        """The command writes a model, removes its checkpoints, and refuses to overwrite a model."""
        file = write(tmp_path / "demos.jsonl", STEPS)
        command = sft(file, tmp_path / "out", start)
        result = CliRunner().invoke(app, [*command, "--epochs", "1"], catch_exceptions=False)
        assert result.exit_code == 0
        assert "8 demonstrated steps of 8 games" in result.output
        assert "validation loss: " in result.output
        assert "{" not in result.output, "only its own lines"
        load_model(str(tmp_path / "out"))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["demos.jsonl", "out"]
        with pytest.raises(ConfigError, match="out exists"):
            CliRunner().invoke(app, command, catch_exceptions=False)

    def test_other_inputs_do_not_resume(
        self, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another command is refused, and the same command is accepted again."""

        def stop(*arguments: object) -> None:
            raise KeyboardInterrupt

        file = write(tmp_path / "demos.jsonl", STEPS)
        command = [*sft(file, tmp_path / "out", start), "--epochs", "1"]
        with monkeypatch.context() as patch:
            patch.setattr(fine_tuning, "fine_tune", stop)
            assert CliRunner().invoke(app, command).exit_code != 0
        with pytest.raises(ConfigError, match="other settings or demonstrations"):
            CliRunner().invoke(app, [*command, "seed=1"], catch_exceptions=False)
        assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("model.model_path=null", "set model.model_path"),
            ("agent.context=conversation", "demos.jsonl has separate steps"),
            ("agent.prompt=nothing", "agent.prompt: no prompt template 'nothing'"),
            ("model.model_path=no/where/at/all", "no/where/at/all does not exist"),
            ("--lr=inf", "--lr inf: give a finite number"),
            ("--lr=0", "--lr 0.0: give a finite number above 0"),
            ("--batch-size=10", "--batch-size 10: give a multiple of --micro-batch-size 4"),
        ],
    )
    def test_bad_settings(self, start: Path, tmp_path: Path, override: str, message: str) -> None:
        """Settings that do not fit raise a one-line error."""
        file = write(tmp_path / "demos.jsonl", STEPS)
        command = sft(file, tmp_path / "out", start)
        with pytest.raises(ConfigError, match=message):
            CliRunner().invoke(app, [*command, override], catch_exceptions=False)

    def test_contexts(self, start: Path, tmp_path: Path) -> None:
        """Rendered prompts fit both contexts; conversations are refused for a window."""
        rendered, conversation = tmp_path / "rendered.jsonl", tmp_path / "conversation.jsonl"
        rows = [{"rendered_prompt": "go to desk 3", "response": "go to desk 3"}] * 2
        rendered.write_text("".join(json.dumps(row) + "\n" for row in rows))
        for context in ("window", "conversation"):
            command = [*sft(rendered, tmp_path / context, start), f"agent.context={context}"]
            CliRunner().invoke(app, [*command, "--epochs", "1"], catch_exceptions=False)
            load_model(str(tmp_path / context))
        messages = [{"role": role, "content": "a"} for role in ["user", "assistant"] * 2]
        conversation.write_text(json.dumps({"messages": messages}) + "\n")
        with pytest.raises(ConfigError, match=r"agent\.context=window: .* has conversations"):
            CliRunner().invoke(
                app, sft(conversation, tmp_path / "out", start), catch_exceptions=False
            )

    def test_bad_models(
        self, tokenizer: PreTrainedTokenizerFast, start: Path, tmp_path: Path
    ) -> None:
        """A model without chat template or tokenizer raises an error."""
        model = tmp_path / "model"
        shutil.copytree(start, model)
        command = sft(write(tmp_path / "demos.jsonl", STEPS), tmp_path / "out", model)
        without = copy.deepcopy(tokenizer)
        without.chat_template = None
        without.save_pretrained(model)
        (model / "chat_template.jinja").unlink(missing_ok=True)
        with pytest.raises(ConfigError, match="has no chat template"):
            CliRunner().invoke(app, command, catch_exceptions=False)
        with pytest.raises(ConfigError, match="has no chat template"):  # of a run, before Ray
            check_inputs(load_config(None, [f"model.model_path={model}"]))
        (model / "tokenizer.json").unlink()
        with pytest.raises(ConfigError, match=r"holds no tokenizer\.json"):
            CliRunner().invoke(app, command, catch_exceptions=False)
        assert not (tmp_path / "out.partial").exists()


def test_prompts_are_shortened_like_the_agents(tokenizer: PreTrainedTokenizerFast) -> None:
    """Prompts that are too long lose their beginning."""
    renderer = make_renderer(tokenizer, max_prompt_tokens=16)
    (row,) = fine_tuning.encode(renderer, [Demonstration("a", ("go to desk 3 " * 20, "x"))])
    kept = row["labels"].count(NO_LOSS)
    assert kept == 16
    assert tokenizer.decode(row["input_ids"][:kept]).endswith("go to desk 3 ")


def test_conversations_are_those_of_the_agent(
    tokenizer: PreTrainedTokenizerFast, generated_games: Path, tmp_path: Path
) -> None:
    """Conversations from `hgpo data demos` have the same token ids as the agent's."""
    file = tmp_path / "demos.jsonl"
    settings = [f"env.data={generated_games}", "agent.context=conversation", "env.max_steps=50"]
    settings += ["env.options={}", "agent.memory_length=2"]
    command = ["data", "demos", "alfworld_pocket", str(file), *settings, "--expert", "explorer"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert "3 conversations of 3 tasks" in result.output
    demonstrations = read_demonstrations(file)
    renderer = make_renderer(tokenizer, max_prompt_tokens=99_999, context="conversation")
    for demonstration, row in zip(demonstrations, encode(renderer, demonstrations), strict=True):
        memory, env = Memory(), ALFWorldEnv(generated_games, split="train")
        game = next(game for game in env.games if demonstration.game in game)
        observation, info = env.reset(options={"game": game})
        for number, response in enumerate(demonstration.messages[1::2], start=1):
            given = info["goal"], observation, info["admissible_actions"], memory
            prompt = renderer.prompt(*given).token_ids
            assert row["input_ids"][: len(prompt)] == prompt
            answer = renderer.encode_response(response)
            end = len(prompt) + len(answer)
            assert row["input_ids"][len(prompt) : end] == answer
            assert row["labels"][len(prompt) : end] == answer
            action = parse_completion(response).action
            ids = np.array(prompt, np.int32), np.array(answer, np.int32)
            memory.turns.append(
                Turn(observation, action, number=number, prompt_ids=ids[0], response_ids=ids[1])
            )
            observation, _, _, _, info = env.step(action)
        assert info["won"]
        assert end == len(row["input_ids"])
        losses = sum(label != NO_LOSS for label in row["labels"])
        assert losses == sum(len(turn.response_ids) for turn in memory.turns)
    short = make_renderer(tokenizer, max_prompt_tokens=999, context="conversation")
    for row, whole in zip(
        encode(short, demonstrations), encode(renderer, demonstrations), strict=True
    ):
        assert 0 < len(row["input_ids"]) < len(whole["input_ids"])
        assert whole["input_ids"][: len(row["input_ids"])] == row["input_ids"]
