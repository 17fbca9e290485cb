"""Models behind a URL: OpenAI's client against a local server that fails on demand."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hgpo_rllib.errors import ConfigError, RunStoppedError
from hgpo_rllib.evaluation import chat
from hgpo_rllib.evaluation.chat import find_remote_model
from hgpo_rllib.evaluation.evaluate import evaluate
from tests.unit.scripted_model import lines, make

Answer = tuple[int, dict[str, Any]]


class Server(ThreadingHTTPServer):
    """An HTTP server that records its requests; `answer` makes the responses."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models: list[str] | None = ["policy"]
        self.asked: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.answer: Callable[[dict[str, Any]], Answer] = lambda body: say("look")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.server.models is None:
            self.send(200, [])
            return
        self.send(200, {"object": "list", "data": [{"id": name} for name in self.server.models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        self.server.keys.add(self.headers["Authorization"])
        self.send(*self.server.answer(body))

    def send(self, status: int, content: Any) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments: Any) -> None:
        """Log nothing."""


def say(action: str, finish_reason: str = "stop") -> Answer:
    """Return a chat completion with one action."""
    content = f"<think>so</think><action>{action}</action>"
    message = {"role": "assistant", "content": content}
    usage = {"prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 35}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return 200, {"id": "x", "object": "chat.completion", "created": 0, "model": "policy"} | {
        "choices": [choice],
        "usage": usage,
    }


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Yield a running server; the client does not retry."""
    monkeypatch.setattr(chat, "RETRIES", 0)
    for variable in chat.KEY_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def request_for(
    server: Server, data: Path, output: Path, *overrides: str, agent: str = "hgpo"
) -> Any:
    """Return a request for one game, six steps, one seed."""
    settings = ["env.max_steps=6", "agent.max_response_tokens=40", *overrides]
    endpoint = find_remote_model(server.url, None, 0.4)
    return make(data, output, endpoint, agent, settings, seeds=1, games=1)


def test_what_is_asked(
    server: Server, generated_games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn sends one user message, sampling settings and its own seed; keys stay secret."""
    monkeypatch.setenv("HGPO_API_KEY", "a-secret")
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    finished = evaluate(request_for(server, generated_games, tmp_path / "e"))
    assert server.keys == {"Bearer a-secret"}
    assert [len(body["messages"]) for body in server.asked] == [1] * 6
    assert len({body["seed"] for body in server.asked}) == 6
    for body in server.asked:
        settings = body["model"], body["temperature"], body["max_tokens"]
        assert settings == ("policy", 0.4, 40)
        assert "structured_outputs" not in body
        assert 0 <= body["seed"] < 2**31
    (episode,) = lines(finished)
    asked = [body["messages"][0]["content"] for body in server.asked]
    assert [step["prompt"] for step in episode["steps"]] == asked
    assert (episode["prompt_tokens"], episode["response_tokens"]) == (180, 30)
    assert all(step["is_valid"] for step in episode["steps"])
    assert not any("a-secret" in file.read_text() for file in finished.path.iterdir())


def test_constrained_actions(server: Server, generated_games: Path, tmp_path: Path) -> None:
    """Each request has a grammar with the actions of its page."""
    evaluate(request_for(server, generated_games, tmp_path / "e", "agent.constrain_actions=true"))
    assert server.asked
    for body in server.asked:
        format = json.loads(body["structured_outputs"]["structural_tag"])["format"]
        actions = [choice["value"] for choice in format["tags"][0]["content"]["elements"]]
        assert "look" in actions
        assert all(action in body["messages"][0]["content"] for action in actions)


def test_a_conversation(server: Server, generated_games: Path, tmp_path: Path) -> None:
    """Each request extends the previous one; a rejected one starts a new conversation."""
    server.answer = lambda body: (
        say("look")
        if len(body["messages"]) < 7
        else (400, {"error": {"message": "too long", "type": "invalid_request_error"}})
    )
    request = request_for(server, generated_games, tmp_path / "e", "agent.context=conversation")
    (episode,) = lines(evaluate(request))
    assert [len(body["messages"]) for body in server.asked] == [1, 3, 5, 7, 1, 3, 5]
    truncated = [step["prompt_truncated"] for step in episode["steps"]]
    assert truncated == [False] * 3 + [True] + [False] * 2
    for earlier, later in itertools.pairwise(server.asked[:3]):
        *before, response, _ = later["messages"]
        assert before == earlier["messages"]
        assert response == say("look")[1]["choices"][0]["message"]
    first, follow_up = server.asked[1]["messages"][0], server.asked[1]["messages"][2]
    assert len(follow_up["content"]) < len(first["content"])


def test_a_response_that_was_cut(server: Server, generated_games: Path, tmp_path: Path) -> None:
    """A truncated response is invalid."""
    server.answer = lambda body: say("look", "length")
    (episode,) = lines(evaluate(request_for(server, generated_games, tmp_path)))
    assert not any(step["is_valid"] for step in episode["steps"])
    assert all(step["response_truncated"] for step in episode["steps"])


def refuse_above(limit: int) -> Callable[[dict[str, Any]], Answer]:
    """Return an `answer` that rejects requests with more than `limit` turns of history."""

    def answer(body: dict[str, Any]) -> Answer:
        message = body["messages"][0]["content"].partition("Now it is your turn")[2]
        if message.count("</action>") - 1 > limit:
            return 400, {"error": {"message": "too long", "type": "invalid_request_error"}}
        return say("look")

    return answer


def test_what_is_too_long_loses_its_oldest_turns(
    server: Server, generated_games: Path, tmp_path: Path
) -> None:
    """A rejected request is retried with as many turns as the server accepts."""
    server.answer = refuse_above(3)
    (episode,) = lines(evaluate(request_for(server, generated_games, tmp_path, agent="react")))
    truncated = [step["prompt_truncated"] for step in episode["steps"]]
    assert truncated == [False] * 4 + [True] * 2


def test_a_rejected_message_ends_the_evaluation(
    server: Server, generated_games: Path, tmp_path: Path
) -> None:
    """The evaluation stops if a message is rejected even without earlier turns."""
    server.answer = refuse_above(-1)
    with pytest.raises(RunStoppedError, match="request_errors 2"):
        evaluate(request_for(server, generated_games, tmp_path, agent="react"))


@pytest.mark.parametrize("status", [200, 401, 404, 429, 500])
def test_a_server_in_trouble(
    server: Server, generated_games: Path, tmp_path: Path, status: int
) -> None:
    """Errors, some with status 200, give one line, and the evaluation can be continued."""
    server.answer = lambda body: (status, {"error": {"message": "trouble", "type": "x"}})
    with pytest.raises(RunStoppedError, match=r"\A[^\n]*trouble[^\n]*to continue\Z"):
        evaluate(request_for(server, generated_games, tmp_path / "e"))
    server.answer = lambda body: say("look")
    assert evaluate(request_for(server, generated_games, tmp_path / "e")).played == 1


def test_names(server: Server) -> None:
    """The model is the server's only one, or the one given by `--name`."""
    only = find_remote_model(f"{server.url}/v1/", None, 0.4).describe()
    assert only == find_remote_model(server.url, "policy", 0.4).describe()
    assert (f"http://{only['address']}", only["name"]) == (f"{server.url}/v1", "policy")
    with pytest.raises(ConfigError, match=r"--name other: .* serves policy"):
        find_remote_model(server.url, "other", 0.4)
    with pytest.raises(ConfigError, match="keys come from"):
        find_remote_model(server.url.replace("://", "://:password@"), None, 0.4)
    server.models = ["a", "b"]
    with pytest.raises(ConfigError, match="serves 2 models: choose one with --name"):
        find_remote_model(server.url, None, 0.4)
    server.models = None
    with pytest.raises(ConfigError, match=r"/v1 did not return a list of models: give http"):
        find_remote_model(server.url, None, 0.4)
