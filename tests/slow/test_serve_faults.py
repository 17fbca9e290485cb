"""`hgpo serve` when one of its processes is killed, and when it gets two signals."""

import re
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import psutil
import pytest
from openai import OpenAI
from transformers import Qwen2Config, Qwen2ForCausalLM

from hgpo_rllib.warmstart.tokenizer import train_tokenizer
from tests.processes import Command, free_port

pytestmark = pytest.mark.slow
TEXT = "You are in the bathroom. On the cabinet 4, you see a soapbottle 2."
KEY = "a-key-of-this-test"
PROCESSES = ("command", "supervisor", "server", "engine")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small model that was not trained."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer([TEXT], ["you", "are", "in", "the", "on", "a"], 300)
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = Qwen2Config(vocab_size=len(tokenizer), max_position_embeddings=8192, **sizes, **heads)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Yield a folder for temporary files, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="hgpo-") as folder:
        yield Path(folder)


@pytest.fixture
def serve(
    model: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Command]:
    """Yield a command that serves the model."""
    port = free_port()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("HGPO_API_KEY", KEY)
    settings = ["model.dtype=float32", "agent.max_response_tokens=7000"]
    words = [str(model), *settings, "--port", str(port), "--metrics"]
    with Command(words, tmp_path / "log.txt", "serve") as command:
        command.wait_until(lambda: "answers at" in command.log.read_text(), 300)
        yield command


def url(command: Command) -> str:
    """Return the address of the policy."""
    found = re.search(r"answers at (\S+)/v1 ", command.log.read_text())
    assert found is not None
    return found[1]


def find_processes(command: Command) -> dict[str, psutil.Process]:
    """Return the processes by role; each is the parent of the next one."""
    root = psutil.Process(command.process.pid)
    (supervisor,) = root.children()
    (server,) = supervisor.children()
    engine = command.processes.find("VLLM::EngineCore")
    return dict(zip(PROCESSES, (root, supervisor, server, engine), strict=True))


def long_request(command: Command) -> Callable[[], str]:
    """Return a function that sends a request of many seconds and returns its result."""
    client = OpenAI(base_url=f"{url(command)}/v1", api_key=KEY, max_retries=0, timeout=120)

    def ask() -> str:
        try:
            ignore = {"ignore_eos": True}
            client.completions.create(
                model="policy", prompt=TEXT, max_tokens=6900, extra_body=ignore
            )
        except openai.APIError as error:
            return type(error).__name__
        return "finished"

    return ask


def assert_nothing_is_left(command: Command, temporary: Path) -> None:
    """Check that no process, no open port and no temporary file remains."""
    command.assert_nothing_survives(20)
    host, port = url(command).removeprefix("http://").split(":")
    with socket.create_server((host, int(port))):
        pass
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("name", PROCESSES)
def test_whatever_is_killed_nothing_is_left(serve: Command, temporary: Path, name: str) -> None:
    """All processes end within seconds, even during a request."""
    found = find_processes(serve)
    assert set(found.values()) < set(serve.processes.alive())
    with ThreadPoolExecutor() as pool:
        request = pool.submit(long_request(serve))
        time.sleep(1)
        found[name].kill()
        assert request.result() != "finished"
    expected = -signal.SIGKILL if name == "command" else 1
    assert serve.process.wait(30) == expected, serve.log.read_text()
    assert_nothing_is_left(serve, temporary)
    if name != "command":
        assert "hgpo: vLLM's server ended with exit code" in serve.log.read_text()


def test_a_second_signal_ends_at_once(serve: Command, temporary: Path) -> None:
    """The first signal waits for the running request, and the second does not."""
    with ThreadPoolExecutor() as pool:
        request = pool.submit(long_request(serve))
        time.sleep(1)
        serve.process.send_signal(signal.SIGINT)
        with pytest.raises(psutil.TimeoutExpired):
            psutil.Process(serve.process.pid).wait(2)
        assert "waiting up to 30 s for running requests" in serve.log.read_text()
        serve.process.send_signal(signal.SIGINT)
        assert serve.process.wait(10) == 130, serve.log.read_text()
        assert request.result() == "APIConnectionError"
    assert_nothing_is_left(serve, temporary)
    assert "Traceback" not in serve.log.read_text()
