"""A gateway with a counting policy, and its clients."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from transformers import PreTrainedTokenizerFast

from hgpo_rllib.agent import TokenRenderer
from hgpo_rllib.policy_server.types import Generation, Prompt
from hgpo_rllib.rollout.gateway import Gateway
from hgpo_rllib.rollout.sessions import Session, Sessions
from hgpo_rllib.rollout.trajectory import Trajectory
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.warmstart.tokenizer import train_tokenizer

INFO = {"goal": "count", "game": "train/3", "task_type": "counting", "admissible_actions": []}

HELLO = [{"role": "user", "content": "at 1 of 2"}]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a small tokenizer."""
    return train_tokenizer(["at 1 of 2, wait. count user assistant"] * 20, [], 320)


class Counter:
    """A policy that responds with the number of the request, after `gate` if it is set."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer
        self.asked: list[Prompt] = []
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None

    async def generate(self, prompt: Prompt) -> Generation:
        self.asked.append(prompt)
        number = len(self.asked)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        ids = self.tokenizer(f"wait {number}", add_special_tokens=False)["input_ids"]
        ids.append(self.tokenizer.eos_token_id)
        logp = np.full(len(ids), -float(number), np.float32)
        return Generation(np.asarray(ids, np.int32), logp, f"w:{number}", "stop", 0.1)


class GatewayHarness:
    """A gateway and its HTTP clients."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        portal: BlockingPortal,
        key: str | None,
        timeout_s: float,
    ):
        self.tokenizer, self.portal, self.key = tokenizer, portal, key
        self.policy = Counter(tokenizer)
        self.renderer = TokenRenderer(
            tokenizer,
            AgentSettings(prompt="alfworld_compact", memory_length=2, max_prompt_tokens=200),
        )
        self.sessions = portal.call(Sessions, timeout_s)
        self.gateway = Gateway(self.sessions, max_tokens=32, key=key)
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        portal.call(self.gateway.start, listener)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.openai_http = httpx.Client(trust_env=False)
        self.http = httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=20)

    def play(self, max_turns: int = 9) -> Future[Trajectory]:
        """Offer a session; return its future trajectory."""

        async def play() -> Trajectory:
            session = Session(self.policy, self.renderer, INFO, "0/train/7", "2/0", 1.0, max_turns)
            return await self.sessions.play(session)

        return self.portal.start_task_soon(play)

    def claim(self) -> str:
        return self.http.post("/sessions").json()["id"]

    def begin(self, max_turns: int = 9) -> tuple[Future[Trajectory], str]:
        """Offer a session and claim it; return its future trajectory and its id."""
        played = self.play(max_turns)
        return played, self.claim()

    def end(self, session: str, played: Future[Trajectory]) -> Trajectory:
        """End a session without a win; return its trajectory."""
        self.post(session, "end")
        return played.result(10)

    def client(self, session: str, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/sessions/{session}/v1",
            api_key=self.key or "none",
            http_client=self.openai_http,
            **{"max_retries": 0, **options},
        )

    def ask(self, session: str, messages: Any = HELLO, **options: Any) -> Any:
        return self.client(session).chat.completions.create(
            model="policy", messages=messages, **options
        )

    def post(self, session: str, path: str, **body: Any) -> httpx.Response:
        return self.http.post(f"/sessions/{session}/{path}", json=body)

    def block(self) -> Callable[[], None]:
        """Block requests until the returned function is called."""
        gate = self.policy.gate = self.portal.call(asyncio.Event)
        return lambda: self.portal.call(gate.set)


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    """Yield an event loop in a thread."""
    with start_blocking_portal() as portal:
        yield portal


@contextmanager
def opened(
    tokenizer: PreTrainedTokenizerFast,
    portal: BlockingPortal,
    key: str | None = None,
    timeout_s: float = 60,
) -> Iterator[GatewayHarness]:
    """Yield a running gateway."""
    harness = GatewayHarness(tokenizer, portal, key, timeout_s)
    yield harness
    harness.http.close()
    portal.call(harness.gateway.stop)


@pytest.fixture(scope="module")
def shared(tokenizer: PreTrainedTokenizerFast, portal: BlockingPortal) -> Iterator[GatewayHarness]:
    """Yield one gateway for all tests of a module."""
    with opened(tokenizer, portal) as harness:
        yield harness


@pytest.fixture
def harness(shared: GatewayHarness) -> GatewayHarness:
    """Return the shared gateway with a new policy."""
    shared.policy = Counter(shared.tokenizer)
    return shared
