"""`hgpo serve` as a user runs it, with OpenAI's client."""

import json
import os
import re
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import openai
import psutil
import pytest
import torch
from openai import OpenAI
from openai.types import CompletionChoice

from hgpo_rllib.agent import TextRenderer
from hgpo_rllib.config import RunConfig, save_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.evaluation.evaluate import evaluate
from hgpo_rllib.evaluation.request import make_request
from hgpo_rllib.models import load_model, load_tokenizer
from hgpo_rllib.settings.policy_server import PolicyServerSettings
from tests.paths import ROOT
from tests.processes import Command, free_port

pytestmark = pytest.mark.integration
KEY = "a-key-of-this-test"
ROOM = "You are in the middle of a room. Looking quickly around you, you see a shelf 1, a sink 2."
NO_PATTERN = {"type": "object", "patternProperties": {"(": {}}}
LIMIT = PolicyServerSettings().max_num_seqs
GOLDEN = ROOT / "tests/unit/agent/golden"
PROMPTS = (ROOM, *(file.read_text() for file in sorted(GOLDEN.glob("alfworld_compact_*.txt"))))


@pytest.fixture(scope="module")
def run(run_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run directory whose checkpoint is the pocket model."""
    folder = tmp_path_factory.mktemp("serve") / "run"
    folder.mkdir()
    save_config(run_config, folder / "config.yaml")
    (folder / "checkpoint").symlink_to(Path(str(run_config.model.model_path)).absolute())
    return folder


@pytest.fixture(scope="module")
def command(run: Path) -> Iterator[Command]:
    """Yield the command with a key, once it has printed its address."""
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HGPO_API_KEY", KEY)
        command = Command([str(run), "--port", str(port)], run.parent / "log.txt", "serve")
    with command:
        command.wait_until(lambda: "answers at" in command.log.read_text(), 240)
        yield command
        command.process.terminate()
        command.process.wait(60)


@pytest.fixture(scope="module")
def address(command: Command) -> str:
    """Return the address that the command printed."""
    found = re.search(r'"policy" answers at (\S+)/v1 ', command.log.read_text())
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def client(address: str) -> OpenAI:
    """Return a client with the right key."""
    return OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0)


def descendants(command: Command) -> list[psutil.Process]:
    """Return the supervisor, vLLM's server, its engine and their resource tracker."""
    return psutil.Process(command.process.pid).children(recursive=True)


def complete(client: OpenAI, prompt: str, **settings: object) -> CompletionChoice:
    """Return a completion, including the token ids that vLLM adds."""
    ids = {"return_token_ids": True}
    settings = {"max_tokens": 64, "extra_body": ids, **settings}
    return client.completions.create(model="policy", prompt=prompt, **settings).choices[0]


def first_prompt(run_config: RunConfig) -> str:
    """Return a prompt of the training data, so that the response ends by itself."""
    env = gym.make(run_config.env.env_id, data=run_config.env.data, split="train")
    observation, info = env.reset(seed=0)
    env.close()
    renderer = TextRenderer(run_config.agent)
    admissible = info["admissible_actions"]
    return renderer.message(info["goal"], observation, admissible, step_count=0, history=())


def test_greedy_as_huggingface(client: OpenAI, run_config: RunConfig) -> None:
    """Greedy responses equal those of HuggingFace, for text prompts and for messages."""
    model_path = str(run_config.model.model_path)
    model, tokenizer = load_model(model_path), load_tokenizer(model_path)
    ends = set()
    for prompt in (*PROMPTS, first_prompt(run_config)):
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
        expected = model.generate(ids, do_sample=False, max_new_tokens=64)[0, ids.shape[1] :]
        choice = complete(client, prompt, temperature=0)
        assert choice.prompt_token_ids == ids[0].tolist()
        assert choice.token_ids == expected.tolist()
        assert choice.text == tokenizer.decode(expected, skip_special_tokens=True)
        chat = client.chat.completions.create(
            model="policy",
            messages=[{"role": "user", "content": prompt}],
            max_tokens=64,
            temperature=0,
        )
        assert chat.choices[0].message.content == choice.text
        ends.add(choice.finish_reason)
    assert "stop" in ends, "no response came to its end"


def test_sampling_and_its_log_probabilities(client: OpenAI, run_config: RunConfig) -> None:
    """Seeds are reproducible, and log-probabilities are those of the sampled distribution."""
    seeds = (1, 1, 2, 3)
    drawn = [complete(client, ROOM, temperature=0.5, seed=seed, logprobs=1) for seed in seeds]
    assert drawn[0].token_ids == drawn[1].token_ids
    assert len({tuple(choice.token_ids) for choice in drawn}) > 1
    prompt, response = drawn[0].prompt_token_ids, drawn[0].token_ids
    with torch.inference_mode():
        logits = load_model(str(run_config.model.model_path))(
            torch.tensor([prompt + response])
        ).logits
    logp = (logits[0, len(prompt) - 1 : -1] / 0.5).log_softmax(-1)
    expected = logp.gather(1, torch.tensor(response)[:, None])[:, 0].tolist()
    assert drawn[0].logprobs is not None
    assert drawn[0].logprobs.token_logprobs == pytest.approx(expected, abs=1e-3)


def test_the_model_and_its_limit(client: OpenAI, run_config: RunConfig) -> None:
    """The server has one model with the length limit of training, and refuses longer prompts."""
    (model,) = client.models.list().data
    limit = run_config.agent.max_prompt_tokens + run_config.agent.max_response_tokens
    assert (model.id, model.max_model_len) == ("policy", limit)
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="policy", prompt=[5] * limit, max_tokens=1)


def test_the_key(command: Command, address: str) -> None:
    """A wrong key is refused on all paths, and the key is in no log or command line."""
    for key in ("another", KEY[:-1]):
        with pytest.raises(openai.AuthenticationError):
            OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0).models.list()
    for path, status in (("v1/models", 401), ("invocations", 404), ("metrics", 404)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{address}/{path}")
        assert caught.value.code == status
    assert KEY not in command.log.read_text()
    assert [KEY in " ".join(process.cmdline()) for process in descendants(command)] == [False] * 4


def test_evaluation(
    address: str, run_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hgpo evaluate URL` works; a wrong key is a one-line error, and no file has the key."""
    words = [address, "agent.prompt=alfworld_compact", "agent.max_response_tokens=32"]
    words += ["env.max_steps=6", "env.options.task_types=[pick_and_place_simple]"]
    arguments: dict[str, Any] = {"env": "alfworld", "games": 2, "output": tmp_path / "e"}
    arguments["data"] = Path(str(run_config.env.data))
    monkeypatch.setenv("HGPO_API_KEY", "another")
    with pytest.raises(ConfigError, match="requires an API key: set"):
        make_request(words, **arguments)
    monkeypatch.setenv("HGPO_API_KEY", KEY)
    request = make_request(words, **arguments)
    finished = evaluate(request)
    episodes = [json.loads(line) for line in (finished.path / "episodes.jsonl").open()]
    assert len(episodes) == 6
    for step in (step for episode in episodes for step in episode["steps"]):
        assert step["prompt"].startswith("Task: ")
        assert step["prompt_tokens"] > 20
        assert 0 < step["response_tokens"] <= 32
    assert any(step["is_valid"] for episode in episodes for step in episode["steps"])
    assert finished.summary["protocol"]["model"]["name"] == "policy"
    assert not any(KEY in file.read_text() for file in finished.path.iterdir())


@pytest.mark.parametrize(
    "settings",
    [
        {"n": LIMIT + 1},
        {"n": 10**12},
        {"prompt": [ROOM] * (LIMIT + 1)},
        {"extra_body": {"structured_outputs": {"regex": "("}}},
        {"extra_body": {"structured_outputs": {"json": {"type": "nothing"}}}},
        {"extra_body": {"structured_outputs": {"grammar": "root ::= "}}},
        {"extra_body": {"structured_outputs": {"json": NO_PATTERN}}},
    ],
    ids=str,
)
def test_requests_that_cannot_be_met(client: OpenAI, settings: dict) -> None:
    """Invalid requests return a client error and do not affect other requests."""
    with pytest.raises(openai.BadRequestError):
        complete(client, **{"prompt": ROOM, "max_tokens": 8, **settings})
    assert complete(client, ROOM, n=2, max_tokens=1).finish_reason == "length"


def test_a_constraint_that_only_the_engine_rejects(client: OpenAI) -> None:
    """The request returns a server error and does not affect other requests."""
    constraint = {"structured_outputs": {"grammar": "root ::= root"}}
    with pytest.raises(openai.InternalServerError):
        complete(client, ROOM, max_tokens=8, extra_body=constraint)
    assert complete(client, ROOM, n=2, max_tokens=1).finish_reason == "length"


def test_a_schema_is_kept_to(client: OpenAI) -> None:
    choice = complete(client, ROOM, extra_body={"structured_outputs": {"choice": ["go", "stop"]}})
    assert choice.text in ("go", "stop")


def refusal(client: OpenAI) -> int | None:
    """Return the status of a refused request, or None if it succeeds."""
    try:
        client.models.list()
    except openai.InternalServerError as error:  # the client's error class for 5xx
        return error.status_code
    return None


def stream(client: OpenAI, begun: threading.Semaphore, **settings: Any) -> str | None:
    """Return a stream's finish reason; release `begun` at the first token."""
    parts = client.completions.create(model="policy", prompt=ROOM, stream=True, **settings)
    reason = next(parts).choices[0].finish_reason
    begun.release()
    for part in parts:
        reason = part.choices[0].finish_reason
    return reason


def test_sigterm_drains_running_requests(command: Command, client: OpenAI, address: str) -> None:
    """Running requests finish, new requests get 503, and no process remains."""
    settings = {"max_tokens": 400, "extra_body": {"ignore_eos": True}}
    assert len(command.processes.alive()) == 5
    begun = threading.Semaphore(0)
    with ThreadPoolExecutor(24) as clients:
        running = [clients.submit(stream, client, begun, **settings) for _ in range(24)]
        assert all(begun.acquire(timeout=60) for _ in running)
        os.kill(command.process.pid, signal.SIGTERM)
        assert command.wait_until(lambda: refusal(client), 10) == 503
        assert [one.result() for one in running] == ["length"] * 24
    assert command.process.wait(60) == 130, command.log.read_text()
    command.assert_nothing_survives(10)
    assert "Traceback" not in command.log.read_text()
