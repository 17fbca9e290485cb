"""Client of the policy server for rollouts: batches single prompts into calls."""

import asyncio

from hgpo_rllib.policy_server.replicas import Replicas
from hgpo_rllib.policy_server.types import (
    Generation,
    Prompt,
    RequestFailedError,
    Sampling,
    WeightTag,
)

MAX_BATCH = 16  # prompts per call: a call costs milliseconds, each prompt in it a tenth of that
Request = tuple[Prompt, asyncio.Future[Generation]]


class PolicyClient:
    """Request responses from the replicas and batch prompts that are pending at the same time.

    Use it from one event loop. A prompt that arrives while a call is in progress is sent in the
    next call. All responses of a call return together.
    """

    def __init__(
        self,
        replicas: Replicas,
        sampling: Sampling,
        weights: WeightTag,
        by_session: bool = False,
    ):
        """Create a client that requests responses sampled with `weights`.

        The attribute `weights` may be replaced while requests are running. With `by_session`, all
        prompts of a session go to the same replica, and calls become smaller.
        """
        self._replicas = replicas
        self._sampling = sampling
        self.weights = weights
        self._by_session = by_session
        self._pending: list[Request] = []
        self._calls: set[asyncio.Task[None]] = set()
        self.in_flight = 0
        """Number of prompts without a response."""

    async def generate(self, prompt: Prompt) -> Generation:
        """Return the response to one prompt.

        Raises:
            RequestFailedError: the engine rejected this prompt.
            RunStoppedError: no replica answered within the limit (see `Replicas`).
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Generation] = loop.create_future()
        if not self._pending:
            loop.call_soon(self._send)  # runs after all ready tasks have added theirs
        self._pending.append((prompt, answer))
        self.in_flight += 1
        try:
            return await answer
        finally:
            self.in_flight -= 1

    def _send(self) -> None:
        pending, self._pending = self._pending, []
        sessions: dict[str, list[Request]] = {}
        for prompt, answer in pending:
            session = prompt.session if self._by_session else ""
            sessions.setdefault(session, []).append((prompt, answer))
        for session, asked in sessions.items():
            for first in range(0, len(asked), MAX_BATCH):
                batch = asked[first : first + MAX_BATCH]
                call = asyncio.get_running_loop().create_task(self._call(batch, session))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)

    async def _call(self, batch: list[Request], session: str) -> None:
        try:
            prompts = [prompt for prompt, _ in batch]
            responses = await self._replicas.generate(
                prompts, self._sampling, self.weights, session
            )
        except Exception as error:  # passed on to every prompt of this call
            for _, answer in batch:
                if not answer.done():  # the waiting task was cancelled
                    answer.set_exception(error)
            return
        for (_, answer), response in zip(batch, responses, strict=True):
            if answer.done():
                continue
            if isinstance(response, RequestFailedError):
                answer.set_exception(response)
            else:
                answer.set_result(response)
