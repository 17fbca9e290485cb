"""An engine that answers under the weights that a request names."""

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
    """Generates responses under the weights that a request names.

    A request carries the tag of the weights it wants. An engine that holds older ones, or another
    publisher's, loads them first: updates need no broadcast, and an engine that was restarted
    catches up by itself. A request for older weights is answered under those that it holds.
    """

    def __init__(self, engine: Engine, transport: WeightTransport, update_mode: UpdateMode):
        """Around an engine that has just started; `update_mode`: see `PolicyServerSettings`."""
        self._engine = engine
        self._transport = transport
        self.update_mode = update_mode
        self._held = STARTING_WEIGHTS
        self._updating: asyncio.Task[None] | None = None
        self._broken: Exception | None = None

    async def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, weights: WeightTag
    ) -> list[Generation | RequestFailedError]:
        """One response to each prompt, drawn under `weights` or newer ones; an error instead of a
        response where the engine refuses a prompt.

        Raises:
            EngineDiedError: the engine has ended, or holds half an update.
        """
        await self._load(weights)
        return await asyncio.gather(*(self._answer(prompt, sampling) for prompt in prompts))

    async def _answer(self, prompt: Prompt, sampling: Sampling) -> Generation | RequestFailedError:
        try:
            return await self._engine.generate(prompt, sampling)
        except RequestFailedError as error:
            return error

    async def _load(self, wanted: WeightTag) -> None:
        """Hold `wanted`, or something newer."""
        while not self._broken and wanted.replaces(self._held):
            if self._updating is None or self._updating.done():
                self._updating = asyncio.create_task(self._update(wanted))
            # A request may be cancelled; an update must not stop half-way.
            await asyncio.shield(self._updating)
        if self._broken:
            raise EngineDiedError(f"new weights were not loaded: {self._broken}")

    async def _update(self, tag: WeightTag) -> None:
        """Give the engine other weights, and empty its prefix cache.

        The engine goes on until they are on this node. Then it makes new requests wait, and those
        under way are ended, thrown away or kept, as `update_mode` says.
        """
        assert tag.weights is not None, "no weights are older than those at the start"
        weights = await self._transport.fetch(tag.weights)
        async with self._engine.receive(weights) as load:
            try:
                await self._engine.pause(self.update_mode)
                await load(tag.version)
                # The transport need not keep them for this replica.
                self._held = replace(tag, weights=None)
            except Exception as error:  # what it holds now is no version
                self._broken = error
            finally:
                await self._engine.resume()
