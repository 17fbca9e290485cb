"""Weights that stay on the learner's GPU until an engine asks for them.

vLLM's transfers between GPUs have one half in the learner, which calls the other half, in the
engine. Here a replica begins a transfer when a request needs the weights, and a `TransferBroker`
passes the calls on. So replicas load independently of each other, as from the object store, and a
restarted one loads the current weights by itself.
"""

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any

from ray.actor import ActorHandle

from hgpo_rllib.policy_server.types import PublishedWeights


@dataclass(frozen=True, kw_only=True)
class WeightsOnLearner(PublishedWeights):
    """A version on the learner's GPU; ``tensors`` is empty."""

    number: int
    """Counted by the learner."""
    broker: ActorHandle
    """The learner's `TransferBroker`."""


class TransferBroker:
    """Passes calls from the learner to the engines that load its weights.

    An actor of its own, because the actor of a learner does one thing at a time. Use its methods
    as remote ones.
    """

    def __init__(self) -> None:
        """Create it in an event loop."""
        self._numbers = itertools.count()
        self._asked: asyncio.Queue[tuple[int, int, int]] = asyncio.Queue()
        self._calls: dict[int, asyncio.Queue[Any]] = {}
        self._replies: dict[int, asyncio.Queue[str | None]] = {}

    async def ask(self, version: int, workers: int) -> int:
        """Ask the learner to send a version to an engine of `workers` processes.

        Returns the number of the transfer.
        """
        transfer = next(self._numbers)
        self._calls[transfer], self._replies[transfer] = asyncio.Queue(), asyncio.Queue()
        await self._asked.put((transfer, version, workers))
        return transfer

    async def asked(self) -> tuple[int, int, int]:
        """Wait for the next transfer: its number, the version, and the number of processes."""
        return await self._asked.get()

    async def call(self, transfer: int, method: str, arguments: dict[str, Any]) -> None:
        """Call the engine, and wait until it is done.

        Raises:
            RuntimeError: the engine has failed.
        """
        await self._calls[transfer].put((method, arguments))
        if error := await self._replies[transfer].get():
            raise RuntimeError(error)

    async def end(self, transfer: int, error: str | None) -> None:
        """Tell the engine that it has all weights, or why not."""
        await self._calls[transfer].put(error)

    async def next_call(self, transfer: int) -> tuple[str, dict[str, Any]] | str | None:
        """Wait for the learner's next call: method and arguments. At the end: error or None."""
        call = await self._calls[transfer].get()
        if not isinstance(call, tuple):
            del self._calls[transfer], self._replies[transfer]
        return call

    async def reply(self, transfer: int, error: str | None) -> None:
        """Tell the learner that its call is done."""
        await self._replies[transfer].put(error)
