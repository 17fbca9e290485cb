"""The gateway over HTTP with the openai client: recorded trajectories and refused requests."""

import copy
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from anyio.from_thread import BlockingPortal
from transformers import PreTrainedTokenizerFast

from hgpo_rllib.rollout.environments import EnvFailedError, EnvTimeoutError
from tests.unit.rollout.conftest import HELLO, GatewayHarness, opened


def test_an_episode(harness: GatewayHarness) -> None:
    """Tokens and log-probabilities come from the engine, rewards and states from the client."""
    played = harness.play()
    task = harness.http.post("/sessions").json()
    session = task.pop("id")
    expected = {"game": "train/3", "task_type": "counting", "goal": "count", "max_turns": 9}
    assert task == expected
    system = {"role": "system", "content": "count"}
    first = harness.ask(session, [system, *HELLO], extra_body={"anchor": "one"}, max_tokens=32)
    assert first.choices[0].message.content == "wait 1"
    assert first.choices[0].finish_reason == "stop"
    assert first.weight_version == "w:1"
    assert first.usage.completion_tokens == len(harness.tokenizer("wait 1")["input_ids"]) + 1
    parts = [{"role": "user", "content": [{"type": "text", "text": "at 2"}]}]
    second = harness.ask(session, parts, temperature=1.0, n=1, stream=False)
    assert harness.post(session, "reward", reward=0.25).status_code == 204
    assert harness.post(session, "reward", reward=0.5, id=first.id).status_code == 204
    assert harness.post(session, "end", won=True, reward=10).status_code == 204
    trajectory = played.result(10)
    one, two = trajectory.steps
    assert (one.reward, two.reward) == (0.5, 10.25)
    assert (one.turn.observation, two.turn.observation) == ("one", "at 2")
    assert (one.observation, one.terminated, two.terminated) == ("at 2", False, True)
    assert trajectory.won
    assert not one.info["won"]
    assert [turn.number for turn in trajectory.turns] == [1, 2]
    chat = harness.tokenizer.apply_chat_template(
        [system, *HELLO], tokenize=False, add_generation_prompt=True
    )
    expected = harness.tokenizer(chat, add_special_tokens=False)["input_ids"]
    assert one.turn.prompt_ids.tolist() == harness.policy.asked[0].token_ids == expected
    assert harness.tokenizer.decode(one.turn.response_ids, skip_special_tokens=True) == "wait 1"
    assert one.turn.behavior_logp.tolist() == [-1.0] * len(one.turn.response_ids)
    assert two.turn.weight_version == "w:2"
    assert two.turn.action == second.choices[0].message.content
    assert len({prompt.seed for prompt in harness.policy.asked}) == 2


def test_empty_fields_of_messages(harness: GatewayHarness) -> None:
    """Empty fields, which some clients send back with responses, do not change the prompt."""
    played, session = harness.begin()
    reply = {"role": "assistant", "content": "wait 1", "tool_calls": None}
    harness.ask(session, [*HELLO, reply, *HELLO])
    del reply["tool_calls"]
    harness.ask(session, [*HELLO, reply, *HELLO])
    harness.end(session, played)
    first, second = harness.policy.asked
    assert first.token_ids == second.token_ids


def test_the_role_developer_is_that_of_the_system(
    tokenizer: PreTrainedTokenizerFast, portal: BlockingPortal
) -> None:
    """The role `developer` of newer clients is rendered as `system`, which chat templates know."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = (
        "{% for message in messages if message['role'] in ('system', 'user') %}"
        "{{ message['role'] }} {{ message['content'] }}{% endfor %}"
    )
    with opened(tokenizer, portal) as harness:
        for role in ("system", "developer"):
            played, session = harness.begin()
            harness.ask(session, [{"role": role, "content": "count"}, *HELLO])
            harness.end(session, played)
        prompts = [tokenizer.decode(prompt.token_ids) for prompt in harness.policy.asked]
        assert prompts == ["system countuser at 1 of 2"] * 2


def test_seeds_are_those_of_the_member(harness: GatewayHarness) -> None:
    """A member that is played again gets the same seeds."""
    for _ in range(2):
        played, session = harness.begin()
        harness.ask(session)
        harness.end(session, played)
    first, again = harness.policy.asked
    assert first.seed == again.seed
    assert first.session == again.session == "0/train/7"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.5}, "temperature=0.5: the run samples with 1"),
        ({"n": 2}, "n is not supported"),
        ({"stream": True}, "stream is not supported"),
        ({"top_p": 0.9}, "top_p is not supported"),
        ({"stop": ["x"]}, "stop is not supported"),
        ({"seed": 1}, "seed is not supported"),
        ({"tools": [{"type": "function", "function": {"name": "go"}}]}, "tools is not supported"),
        ({"max_tokens": 16}, "max_tokens=16: the run's responses have up to 32 tokens"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role: String should match"),
        ({"messages": [{**HELLO[0], "tool_calls": [{"id": "1"}]}]}, "messages.0.tool_calls: Extra"),
        (
            {"messages": [{"role": "user", "content": "at 1 " * 200}]},
            "more than agent.max_prompt_tokens=200: shorten them",
        ),
    ],
)
def test_requests_that_are_refused(
    harness: GatewayHarness, options: dict[str, Any], message: str
) -> None:
    """A refused request returns an error and is not part of the episode."""
    played, session = harness.begin()
    with pytest.raises(openai.BadRequestError, match=message):
        harness.ask(session, **{"messages": HELLO, **options})
    harness.ask(session)
    assert len(harness.end(session, played)) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("reward", {"reward": float("nan")}),
        ("reward", {"reward": "much"}),
        ("reward", {"reward": 1, "id": "chatcmpl-0"}),
        ("reward", {"rewards": 1}),
        ("end", {"won": "yes"}),
        ("end", {"reward": float("inf")}),
        ("end", "{"),
    ],
)
def test_rewards_that_are_refused(harness: GatewayHarness, path: str, body: Any) -> None:
    """A refused reward or end leaves the session unchanged."""
    played, session = harness.begin()
    harness.ask(session)
    content = body if isinstance(body, str) else json.dumps(body)
    refused = harness.http.post(f"/sessions/{session}/{path}", content=content)
    assert refused.status_code == 400
    harness.post(session, "end", reward=2)
    assert played.result(10).episode_return == 2


def test_requests_of_web_pages_are_refused(harness: GatewayHarness) -> None:
    """A page could otherwise take sessions of a gateway on loopback, or set rewards."""
    played, session = harness.begin()
    harness.ask(session)
    for path in ("/sessions", f"/sessions/{session}/end"):
        refused = harness.http.post(path, headers={"Origin": "http://page.example"}, json={})
        assert refused.status_code == 403
    assert len(harness.end(session, played)) == 1


def test_a_key(tokenizer: PreTrainedTokenizerFast, portal: BlockingPortal) -> None:
    """Requests to all paths are refused without the right key."""
    with opened(tokenizer, portal, "secret") as harness:
        check_key(harness)


def check_key(harness: GatewayHarness) -> None:
    played, session = harness.begin()
    harness.ask(session)
    for wrong in ({"Authorization": "Bearer guess"}, {"Authorization": "secret"}, {}):
        for path in ("", *(f"/{session}/{p}" for p in ("v1/chat/completions", "reward", "end"))):
            response = harness.openai_http.post(f"{harness.url}/sessions{path}", headers=wrong)
            assert response.status_code == 401
        url = f"{harness.url}/sessions/{session}/v1/x"
        assert harness.openai_http.post(url, headers=wrong).status_code == 404
    assert len(harness.end(session, played)) == 1


def test_sessions_that_ended(harness: GatewayHarness) -> None:
    """Requests to ended and to unknown sessions return status 410."""
    played, session = harness.begin()
    harness.ask(session)
    harness.end(session, played)
    for name in (session, "unknown"):
        assert harness.post(name, "end").status_code == 410
        assert harness.post(name, "reward", reward=1).status_code == 410
        with pytest.raises(openai.APIStatusError) as error:
            harness.ask(name)
        assert error.value.status_code == 410


def test_an_end_without_a_response(harness: GatewayHarness) -> None:
    """Ending a session without a response is refused, and the session stays open."""
    played, session = harness.begin()
    assert harness.post(session, "end").status_code == 400
    harness.ask(session)
    assert len(harness.end(session, played)) == 1


def test_a_session_that_never_ends(
    tokenizer: PreTrainedTokenizerFast, portal: BlockingPortal
) -> None:
    """A session fails after a time without requests, but not while a response takes long."""
    with opened(tokenizer, portal, timeout_s=1.0) as harness:
        played, session = harness.begin()
        release = harness.block()
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(harness.ask, session)
            time.sleep(1.5)  # more than the timeout
            assert not played.done()
            release()
            asked.result(10)
        with pytest.raises(EnvTimeoutError, match="no request for 1 s"):
            played.result(10)
        assert harness.post(session, "end").status_code == 410


def test_too_many_turns(harness: GatewayHarness) -> None:
    """The request after the last turn truncates the episode."""
    played, session = harness.begin(max_turns=2)
    harness.ask(session)
    harness.ask(session)
    with pytest.raises(openai.APIStatusError, match="the limit is 2 responses"):
        harness.ask(session)
    trajectory = played.result(10)
    assert [step.truncated for step in trajectory.steps] == [False, True]
    assert not trajectory.steps[-1].terminated


def test_a_client_that_reports_an_error(harness: GatewayHarness) -> None:
    """An error that the client reports fails the episode."""
    played = harness.play()
    assert harness.post(harness.claim(), "end", error="no such game").status_code == 204
    with pytest.raises(EnvFailedError, match="reported by the client: no such game"):
        played.result(10)
