"""`hgpo evaluate` with the pocket model behind the project's own policy server."""

import json
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from hgpo_rllib.cli.play import policy
from hgpo_rllib.config import RunConfig, save_config
from hgpo_rllib.evaluation.evaluate import evaluate
from hgpo_rllib.evaluation.models import LocalModel, Model, served
from hgpo_rllib.evaluation.request import make_request
from hgpo_rllib.play.web import application
from tests.processes import Command
from tests.unit.cli.command import run_hgpo

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def run(run_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run directory with the pocket model and more learners than this machine can run."""
    folder = tmp_path_factory.mktemp("evaluate") / "run"
    folder.mkdir()
    cluster = run_config.cluster.model_copy(update={"num_learners": 999})
    save_config(run_config.model_copy(update={"cluster": cluster}), folder / "config.yaml")
    (folder / "checkpoint").symlink_to(Path(str(run_config.model.model_path)).absolute())
    return folder


def test_the_command(run: Path, tmp_path: Path) -> None:
    """The command plays every game; a second call plays none; no process remains."""
    output = tmp_path / "e"
    arguments = [str(run), "--games", "2", "--seeds", "2", "--output", str(output)]
    command = Command([*arguments, "env.max_steps=8"], tmp_path / "log.txt", "evaluate")
    assert command.process.wait(200) == 0, command.log.read_text()
    command.assert_nothing_survives()
    assert "4 episodes played" in command.log.read_text()
    episodes = [json.loads(line) for line in (output / "episodes.jsonl").open()]
    assert [(e["seed"], e["place"]) for e in episodes] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for step in (step for episode in episodes for step in episode["steps"]):
        assert step["prompt"].startswith("Task: ")
        assert 0 < step["response_tokens"] <= 32
    protocol = json.loads((output / "summary.json").read_text())["protocol"]
    assert protocol["agent"]["templates"]["prompt"]["name"] == "alfworld_compact"
    assert len(protocol["model"]["weights_sha256"]["model.safetensors"]) == 64
    assert {"torch", "transformers", "ray"} <= protocol["versions"].keys()
    again = run_hgpo(tmp_path, "evaluate", *arguments, "env.max_steps=8")
    assert again.returncode == 0, again.stderr
    assert "nothing left to play" in again.stdout + again.stderr


@pytest.fixture
def model(run_config: RunConfig, shared_server: None) -> Iterator[Model]:
    """Yield the model that the shared policy server holds."""
    with served(run_config) as model:
        yield model


@dataclass(frozen=True)
class SharedModel(LocalModel):
    """The run's model, which the shared policy server already holds."""

    model: Model

    def open(self) -> nullcontext[Model]:  # type: ignore[override]
        return nullcontext(self.model)


def play(run: Path, output: Path, model: Model, agent: str, *words: str, **changes: Any) -> Any:
    """Return an evaluation of the run with the shared model."""
    changes = {"games": 2, **changes}
    request = make_request([str(run), *words], agent=agent, output=output, **changes)
    return evaluate(replace(request, model=SharedModel(request.config, model)))


def test_the_same_numbers_in_another_directory(run: Path, tmp_path: Path, model: Model) -> None:
    """Episodes are reproducible, also with fewer games and seeds."""
    words = ("env.max_steps=8",)
    first, second = (play(run, tmp_path / name, model, "hgpo", *words) for name in "ab")
    alone = play(run, tmp_path / "c", model, "hgpo", *words, games=1, seeds=1)
    texts = [(found.path / "episodes.jsonl").read_text() for found in (first, second, alone)]
    assert texts[0] == texts[1]
    assert texts[0].startswith(texts[2])
    assert first.summary["results"] == second.summary["results"]


def test_reflexion(run: Path, tmp_path: Path, model: Model) -> None:
    """Reflexion plays another trial after a loss and shortens prompts that are too long."""
    words = ("env.max_steps=2", "agent.memory_length=1")
    found = play(run, tmp_path, model, "reflexion", *words, games=1, seeds=1, trials=2)
    (episode,) = [json.loads(line) for line in (found.path / "episodes.jsonl").open()]
    assert episode["trials"] == 1 + len(episode["lost_trials"])
    assert episode["success"] or episode["trials"] == 2
    assert all(step["prompt_truncated"] for step in episode["steps"])


def check_pages(pages: list[str]) -> None:
    """Check that each page shows a response and the frequencies of sampled actions."""
    assert len(pages) == 2
    for number, page in enumerate(pages, start=1):
        assert f"Step {number} of {number}" in page
        assert "&lt;action&gt;" in page, "the response"
        shares = re.findall(r'class="number">(\d+)%<', page)
        assert sum(map(int, shares)) == pytest.approx(100, abs=4)


def test_watching_the_policy(run: Path, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages of `hgpo play policy` work, requested in this process."""
    pages = []

    async def browse(app: Starlette) -> None:
        transport, address = httpx.ASGITransport(app), "http://127.0.0.1"
        async with httpx.AsyncClient(
            transport=transport, base_url=address, follow_redirects=True, timeout=60
        ) as browser:
            pages.append((await browser.get("/")).text)
            pages.append((await browser.post("/steps/1")).text)

    def serve(app: Starlette, listener: socket.socket, run: Callable) -> None:
        with listener:
            run(browse(app))

    monkeypatch.setattr(LocalModel, "open", lambda _: nullcontext(model))
    monkeypatch.setattr(application, "serve", serve)
    policy([str(run)], samples=8, port=0)
    check_pages(pages)


@pytest.mark.slow  # starts a policy server; the test above requests the same pages
def test_watching_the_policy_with_a_browser(run: Path, tmp_path: Path) -> None:
    """The command serves the pages, and Ctrl+C ends all its processes."""
    arguments = ["policy", str(run), "--samples", "8", "--port", "0"]
    with Command(arguments, tmp_path / "log.txt", "play") as command:
        address = re.compile(r"http://127\.0\.0\.1:\d+")
        found = command.wait_until(lambda: address.search(command.log.read_text()), 200)
        with httpx.Client(base_url=found[0], follow_redirects=True, timeout=60) as browser:
            check_pages([browser.get("/").text, browser.post("/steps/1").text])
            assert browser.get("/steps/1").text.count("Step 1 of 2") == 1
        command.process.send_signal(signal.SIGINT)
        assert command.process.wait(60) == 130, command.log.read_text()
        command.assert_nothing_survives()
