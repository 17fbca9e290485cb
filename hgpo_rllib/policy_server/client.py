"""The rollouts' side of the policy server."""

import asyncio
import logging
from collections.abc import Sequence

from ray.exceptions import ObjectLostError, RayActorError
from ray.serve.handle import DeploymentHandle

from hgpo_rllib.policy_server.engine import MAX_BATCH
from hgpo_rllib.policy_server.types import (
    EngineDiedError,
    Generation,
    Prompt,
    RequestFailedError,
    Sampling,
    WeightTag,
)

logger = logging.getLogger(__name__)

LOST = (RayActorError, ObjectLostError, EngineDiedError)  # with the replica, its engine or its node
# Seconds before asking again. A dead node is taken for alive for some 15 seconds, a dead engine for
# 30, and until then Serve may choose it again. After that a call waits for a replica that runs.
PAUSES_S = (1, 2, 4, 8, 15, 15, 15)
Asked = tuple[Prompt, asyncio.Future[Generation]]


class PolicyClient:
    """Asks the deployment for responses; prompts that wait at the same moment share a call.

    Use it from one event loop. Whoever asks while a call is under way is sent with the next one;
    the answers of one call return together.
    """

    def __init__(
        self,
        handle: DeploymentHandle,
        sampling: Sampling,
        weights: WeightTag,
        by_session: bool = False,
    ):
        """Ask for responses drawn under `weights`.

        Args:
            handle: of the deployment.
            sampling: of all responses.
            weights: present ones; may be exchanged while responses are under way.
            by_session: send each session's prompts to a replica of its own. For several replicas:
                calls become smaller.
        """
        self._handle = handle
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
            handle = self._handle.options(session_id=session) if session else self._handle
            for first in range(0, len(asked), MAX_BATCH):
                batch = asked[first : first + MAX_BATCH]
                call = asyncio.get_running_loop().create_task(self._call(handle, batch))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)

    async def _call(self, handle: DeploymentHandle, batch: list[Asked]) -> None:
        try:
            prompts = [prompt for prompt, _ in batch]
            responses = await ask(handle, prompts, self._sampling, self.weights)
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


async def ask(
    handle: DeploymentHandle,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    weights: WeightTag,
) -> list[Generation | RequestFailedError]:
    """One response to each prompt, drawn under `weights`, or why there is none.

    A replica that dies takes its prompts with it: they are asked again, of another one or of its
    successor, which loads `weights` first.
    """
    for pause in PAUSES_S:
        try:
            return await handle.generate.remote(prompts, sampling, weights)
        except LOST as error:
            logger.warning("policy server: %s; asking again", type(error).__name__)
        await asyncio.sleep(pause)
    return await handle.generate.remote(prompts, sampling, weights)
