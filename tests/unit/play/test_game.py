"""Games in the browser, played by a person or a scripted policy, tested without a browser."""

import html
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from env_wrappers.errors import DataError
from env_wrappers.textcraft.env import TextCraftEnv
from hgpo_rllib.play.policy import WatchedPolicy
from hgpo_rllib.play.web.pages import Game
from hgpo_rllib.policy_server.types import RequestFailedError
from hgpo_rllib.settings.agent import AgentSettings
from tests.unit.cli.command import Run
from tests.unit.env_wrappers.textcraft.textcraft_data import write_recipes
from tests.unit.play.addresses import ADDRESS
from tests.unit.scripted_model import ScriptedModel

WINNING = (
    *("get 2 bamboo", "craft 1 stick using 2 bamboo", "get 1 cobblestone"),
    "craft 1 lever using 1 stick, 1 cobblestone",
)


@pytest.fixture
def env(tmp_path: Path) -> TextCraftEnv:
    """Return an environment with a few recipes and at most five steps."""
    return TextCraftEnv(write_recipes(tmp_path / "data"), "train", max_steps=5)


@pytest.fixture
def lever_task(env: TextCraftEnv) -> dict[str, Any]:
    """Return the reset arguments that select the goal of crafting a lever."""
    return {"options": {"goal": env.goals.index("minecraft:lever")}}


@pytest.fixture
def client(env: TextCraftEnv, lever_task: dict[str, Any]) -> Iterator[TestClient]:
    """Yield the client of a person who plays."""
    with TestClient(Game(env, lever_task).app, ADDRESS) as client:
        yield client


class TestPerson:
    def test_winning(self, client: TestClient) -> None:
        page = client.get("/")
        assert page.url.path == "/steps/1"
        assert "Goal: craft lever." in page.text
        for place, action in enumerate(WINNING, 1):
            assert f'name="action" value="{action}"' in page.text or "craft" in action
            page = client.post(f"/steps/{place}", data={"action": action})
            assert page.url.path == f"/steps/{place + 1}"
        assert '<span class="good">won</span>' in page.text
        assert "4 steps, return 10.00" in page.text
        assert 'name="action"' not in page.text
        assert "10.000" in client.get("/steps/4").text
        assert client.post("/steps/5", data={"action": "inventory"}).url.path == "/steps/5"

    def test_a_step_is_taken_once(self, client: TestClient) -> None:
        """A step that is posted twice, as by a double click, is taken once."""
        for _ in range(2):
            page = client.post("/steps/1", data={"action": "dance <b>"})
            assert page.url.path == "/steps/2"
        first = client.get("/steps/1").text
        assert "action, inadmissible" in first
        assert "dance &lt;b&gt;" in first

    def test_losing_and_another_game(self, client: TestClient) -> None:
        for place in range(1, 6):
            page = client.post(f"/steps/{place}", data={"action": "inventory"})
        assert '<span class="bad">lost</span>' in page.text
        again = client.post("/games")
        assert (again.url.path, "craft lever" in again.text) == ("/steps/1", True)
        other = client.post("/games", data={"number": "0"}).text
        assert "craft lever" not in other.partition("<section")[0]

    def test_bad_requests(self, client: TestClient, env: TextCraftEnv) -> None:
        assert client.get("/steps/2").status_code == 404
        assert client.post("/steps/1", data={}).status_code == 400
        for number in ("x", "9" * 5000):  # Python converts at most 4300 digits
            assert client.post("/games", data={"number": number}).status_code == 400
        assert client.post("/games", data={"number": str(env.num_tasks)}).status_code == 400
        foreign = {"origin": "http://example.org"}
        assert client.post("/steps/1", data={"action": "x"}, headers=foreign).status_code == 403


MakePolicy = Callable[[Mapping[str, Any]], WatchedPolicy]


def watched(model: ScriptedModel, samples: int) -> MakePolicy:
    """Return the function that creates the policy of an episode."""
    make_agent = model.agent_factory(AgentSettings(prompt="textcraft_full", memory_length=2))
    return lambda info: WatchedPolicy(make_agent, samples, info, "group")


def test_a_policy_is_watched(env: TextCraftEnv, lever_task: dict[str, Any]) -> None:
    """The first sampled response acts, and all samples have the same prompt."""
    seeds: list[int] = []

    def say(message: str, seed: int) -> str:
        seeds.append(seed)
        action = "get 2 bamboo" if len(seeds) % 4 == 1 else "fly away"
        return f"<think>number {len(seeds)}</think><action>{action}</action>"

    model = ScriptedModel(say)
    with TestClient(Game(env, lever_task, watched(model, 4)).app, ADDRESS) as client:
        page = client.get("/").text
        assert client.get("/steps/1").text == page
        assert (len(set(seeds)), len(set(model.messages))) == (4, 1)
        assert "number 1</p>" in page
        assert '<p class="action">get 2 bamboo</p>' in page
        rows = re.findall(r'<span class="number">(.*?)</span> (.*?)</li>', page)
        assert rows[0] == ("75%", 'fly away <span class="bad">not offered</span>')
        assert rows[1] == ("25%", "get 2 bamboo")
        assert ("0%", "inventory") in rows
        second = client.post("/steps/1").text
        assert len(seeds) == 8
        assert "Got 2 bamboo" in second
        assert "fly away" not in html.unescape(model.messages[-1])
        assert "get 2 bamboo" in html.unescape(model.messages[-1])
        assert client.post("/games").url.path == "/steps/1"


def test_a_model_that_fails(env: TextCraftEnv, lever_task: dict[str, Any]) -> None:
    """The model's error is shown as a page, and the step is not taken."""

    def say(message: str, seed: int) -> str:
        raise RequestFailedError("the prompt is <too> long")

    with TestClient(Game(env, lever_task, watched(ScriptedModel(say), 2)).app, ADDRESS) as client:
        page = client.get("/")
        assert page.status_code == 502
        assert "the prompt is &lt;too&gt; long" in page.text
        assert client.post("/steps/1").status_code == 400


def test_an_environment_that_fails(
    env: TextCraftEnv, lever_task: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is shown as a page and ends the episode."""

    def act(action: str) -> None:
        raise DataError("the recipes are broken")

    monkeypatch.setattr(env, "_act", act)
    with TestClient(Game(env, lever_task).app, ADDRESS) as client:
        failed = client.post("/steps/1", data={"action": "inventory"})
        assert failed.status_code == 502
        assert "the recipes are broken" in failed.text
        again = client.post("/steps/1", data={"action": "inventory"})
        assert (again.status_code, again.url.path) == (200, "/steps/1")
        assert '<span class="bad">lost</span>' in again.text


def test_a_task_that_does_not_exist(env: TextCraftEnv) -> None:
    with pytest.raises(DataError, match="no goal 999"):
        Game(env, {"options": {"goal": 999}})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("textcraft", "--port", "0"), "add --web"),
        (("textcraft", "--web", "--game", "9999"), "--game 9999: there are "),
        (("policy", "nowhere", "--env", "textcraft"), "nowhere"),
    ],
)
def test_bad_input(hgpo: Run, options: tuple[str, ...], named: str) -> None:
    assert named in hgpo.refusal("play", *options)
