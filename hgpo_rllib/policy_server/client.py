"""The rollouts' side of the policy server: one prompt at a time, in calls of several."""

import asyncio

from hgpo_rllib.policy_server.replicas import Replicas
from hgpo_rllib.policy_server.types import (
    Generation,
    Prompt,
    RequestFailedError,
    Sampling,
    WeightTag,
)

MAX_BATCH = 16  # prompts per call: a call costs milliseconds, a prompt in it a tenth of that
Asked = tuple[Prompt, asyncio.Future[Generation]]


class PolicyClient:
    """Asks the replicas for responses; prompts that wait at the same moment share a call.

    Use it from one event loop. A prompt that comes while a call is under way is sent with the
    next one; the answers of one call return together.
    """

    def __init__(
        self,
        replicas: Replicas,
        sampling: Sampling,
        weights: WeightTag,
        by_session: bool = False,
    ):
        """Ask for responses drawn under `weights`.

        Args:
            replicas: of the policy server.
            sampling: of all responses.
            weights: present ones; may be exchanged while responses are under way.
            by_session: send each session's prompts to a replica of its own. For several replicas:
                calls become smaller.
        """
        self._replicas = replicas
        self._sampling = sampling
        self.weights = weights
        self._by_session = by_session
        self._waiting: list[Asked] = []
        self._calls: set[asyncio.Task[None]] = set()
        self.in_flight = 0
        """Prompts that have no answer yet."""

    async def generate(self, prompt: Prompt) -> Generation:
        """The response to one prompt.

        Raises:
            RequestFailedError: the engine refuses this prompt.
            RunStoppedError: no replica has answered for too long (`Replicas`).
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Generation] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._send)  # after all that are ready now have asked
        self._waiting.append((prompt, answer))
        self.in_flight += 1
        try:
            return await answer
        finally:
            self.in_flight -= 1

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        sessions: dict[str, list[Asked]] = {}
        for prompt, answer in waiting:
            session = prompt.session if self._by_session else ""
            sessions.setdefault(session, []).append((prompt, answer))
        for session, asked in sessions.items():
            for first in range(0, len(asked), MAX_BATCH):
                batch = asked[first : first + MAX_BATCH]
                call = asyncio.get_running_loop().create_task(self._call(batch, session))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)

    async def _call(self, batch: list[Asked], session: str) -> None:
        try:
            prompts = [prompt for prompt, _ in batch]
            responses = await self._replicas.generate(
                prompts, self._sampling, self.weights, session
            )
        except Exception as error:  # handed to everyone who waits for this call
            for _, answer in batch:
                if not answer.done():  # who waited was cancelled
                    answer.set_exception(error)
            return
        for (_, answer), response in zip(batch, responses, strict=True):
            if answer.done():
                continue
            if isinstance(response, RequestFailedError):
                answer.set_exception(response)
            else:
                answer.set_result(response)
