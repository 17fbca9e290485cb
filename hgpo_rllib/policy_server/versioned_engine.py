"""An engine that loads the weights that a request requires before it generates."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from hgpo_rllib.policy_server.engine import Engine, WeightTransport
from hgpo_rllib.policy_server.types import (
    STARTING_WEIGHTS,
    EngineDiedError,
    Generation,
    Prompt,
    RequestFailedError,
    Sampling,
    WeightTag,
)
from hgpo_rllib.settings.policy_server import UpdateMode


class VersionedEngine:
    """Generate responses with the weights that a request specifies.

    Each request carries a weight tag. An engine with older weights, or those of another publisher,
    loads the requested weights first. Updates therefore need no broadcast, and a restarted engine
    catches up by itself. A request for older weights gets responses of the current weights.
    """

    def __init__(self, engine: Engine, transport: WeightTransport, update_mode: UpdateMode):
        """Wrap a newly started engine; for `update_mode` see `PolicyServerSettings`."""
        self._engine = engine
        self._transport = transport
        self.update_mode = update_mode
        self._held = STARTING_WEIGHTS
        self._updating: asyncio.Task[None] | None = None
        self._broken: Exception | None = None
        self._asleep = False
        self._waking = asyncio.Lock()

    async def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, weights: WeightTag
    ) -> list[Generation | RequestFailedError]:
        """Return one response per prompt, sampled with `weights` or newer ones.

        A prompt that the engine rejects gets a `RequestFailedError` instead of a response.

        Raises:
            EngineDiedError: the engine has exited, or a weight update failed.
        """
        await self._wake()
        await self._load(weights)
        responses = await asyncio.gather(*(self._answer(prompt, sampling) for prompt in prompts))
        self._check_intact()  # else partly updated weights may have sampled them
        return responses

    async def sleep(self) -> None:
        """Free the engine's GPU memory until the next request, when no request is running."""
        await self._engine.sleep()
        self._asleep = True

    async def _wake(self) -> None:
        async with self._waking:  # requests that arrive together wait for the first one's call
            if self._asleep:
                await self._engine.wake_up()
                self._asleep = False

    async def _answer(self, prompt: Prompt, sampling: Sampling) -> Generation | RequestFailedError:
        try:
            return await self._engine.generate(prompt, sampling)
        except RequestFailedError as error:
            return error

    async def _load(self, wanted: WeightTag) -> None:
        """Load `wanted` unless the engine holds it or newer weights."""
        while not self._broken and wanted.replaces(self._held):
            if self._updating is None or self._updating.done():
                self._updating = asyncio.create_task(self._update(wanted))
            # A cancelled request must not interrupt an update.
            await asyncio.shield(self._updating)
        self._check_intact()

    def _check_intact(self) -> None:
        if self._broken:
            raise EngineDiedError(f"new weights were not loaded: {self._broken}") from self._broken

    async def _update(self, tag: WeightTag) -> None:
        """Load the weights of `tag` into the engine and clear its prefix cache.

        The engine keeps generating until the weights are on this node. It then holds new requests,
        and finishes, resamples or continues running ones according to `update_mode`.
        """
        assert tag.handle is not None, (
            "the starting weights, which have no handle, are never loaded"
        )
        weights = await self._transport.fetch(tag.handle)
        async with self._engine.receive(weights) as load:
            try:
                await self._engine.pause(self.update_mode)
                await load(tag.version)
                # Drop the handle, so that the transport can free the weights.
                self._held = replace(tag, handle=None)
            except Exception as error:  # its weights may be partly updated
                self._broken = error
            finally:
                await self._engine.resume()
