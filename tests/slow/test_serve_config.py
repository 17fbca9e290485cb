"""A checkpoint deployed with `serve deploy` and the repository's config file, on a real cluster."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import psutil
import pytest
import torch
import yaml
from openai import OpenAI

from hgpo_rllib.config import RunConfig
from hgpo_rllib.models import load_model, load_tokenizer
from tests.integration.conftest import overrides, run_config
from tests.integration.test_serve import KEY, ROOM, complete, run
from tests.paths import ROOT
from tests.processes import command_line, free_port, wait_until
from tests.slow.test_two_nodes import HEAD, Node, start_node

__all__ = ["overrides", "run", "run_config", "start_node"]  # fixtures
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
SERVE = [sys.executable, "-c", "from ray.serve.scripts import cli; cli()"]


@pytest.fixture
def address(
    run: Path,
    tmp_path: Path,
    start_node: Callable[[str, list[str]], Node],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """Yield the address of docker/serve.yaml's policy, with another checkpoint and port."""
    monkeypatch.setenv("HGPO_API_KEY", KEY)
    dashboard, port = free_port("127.0.0.1"), free_port("127.0.0.1")
    start_node(HEAD, ["--num-cpus=2", "--include-dashboard=true", f"--dashboard-port={dashboard}"])
    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", f"http://127.0.0.1:{dashboard}")
    config = yaml.safe_load((ROOT / "docker" / "serve.yaml").read_text())
    config["http_options"]["port"] = port
    config["applications"][0]["args"]["checkpoint"] = str(run)
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(config))
    serve("deploy", str(file))
    wait_until(lambda: "status: RUNNING" in serve("status", "-n", "policy"), 600, status)
    yield f"http://127.0.0.1:{port}/v1"
    serve("shutdown", "-y")


def serve(*arguments: str) -> str:
    done = subprocess.run([*SERVE, *arguments], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def status() -> str:
    return serve("status")


def servers(run: Path) -> list[psutil.Process]:
    """Return the processes of vLLM's servers for this policy."""
    found = [p for p in psutil.process_iter() if "vllm_serve" in command_line(p)]
    return [p for p in found if str(run / "checkpoint") in command_line(p)]


def test_a_checkpoint_is_deployed_and_replaced(
    address: str, run: Path, run_config: RunConfig
) -> None:
    """The server equals HuggingFace, streams, requires the key, and is replaced when it is lost."""
    client = OpenAI(base_url=address, api_key=KEY, max_retries=0, timeout=120)
    model_path = str(run_config.model.model_path)
    model, tokenizer = load_model(model_path), load_tokenizer(model_path)
    ids = tokenizer(ROOM, return_tensors="pt", add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        expected = model.generate(ids, do_sample=False, max_new_tokens=64)[0, ids.shape[1] :]
    choice = complete(client, ROOM, temperature=0)
    assert choice.token_ids == expected.tolist()

    stream = client.completions.create(
        model="policy", prompt=ROOM, max_tokens=64, temperature=0, stream=True
    )
    assert "".join(part.choices[0].text for part in stream) == choice.text
    with pytest.raises(openai.AuthenticationError):
        OpenAI(base_url=address, api_key="another", max_retries=0).models.list()
    with pytest.raises(openai.BadRequestError):
        complete(client, ROOM, max_tokens=10**6)

    (lost, *_) = servers(run)
    lost.kill()
    wait_until(lambda: (now := servers(run)) and lost not in now, 400, status)
    wait_until(lambda: "status: RUNNING" in serve("status", "-n", "policy"), 600, status)
    assert complete(client, ROOM, temperature=0).token_ids == expected.tolist()

    serve("shutdown", "-y")
    wait_until(lambda: not servers(run), 60, status)
