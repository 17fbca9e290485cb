"""What the policy server asks of an inference engine, and of the way that weights take to it.

Both are modules, chosen by name: `ENGINES` and `WEIGHT_TRANSPORTS` in
`hgpo_rllib.settings.policy_server`.
"""

import importlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, cast

from hgpo_rllib.config import AgentSettings, ModelSettings, PolicyServerSettings
from hgpo_rllib.policy_server.types import Generation, Prompt, PublishedWeights, Sampling
from hgpo_rllib.settings.policy_server import UpdateMode

Load = Callable[[str], Awaitable[None]]
"""Loads the weights that an engine has received, as this version."""


class Engine(Protocol):
    """A running engine with one model; used from one event loop.

    All methods raise `EngineDiedError` when its processes have ended.
    """

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """The response to one prompt, with its log-probabilities and the versions that drew it.

        The version of the weights that an engine starts with is `STARTING_WEIGHTS.version`.

        Raises:
            RequestFailedError: this prompt is refused; others are answered.
        """

    def receive(self, weights: PublishedWeights) -> AbstractAsyncContextManager[Load]:
        """Bring weights to where the engine can load them; it goes on answering meanwhile.

        The block calls what it gets between `pause` and `resume`.
        """

    async def pause(self, mode: UpdateMode) -> None:
        """Let new requests wait, treat those under way as `mode` says, and empty the caches."""

    async def resume(self) -> None:
        """Answer again."""

    async def ping(self) -> None:
        """Returns when the engine's own loop has answered, between two of its steps."""

    @property
    def has_ended(self) -> bool:
        """Whether its processes have ended, as far as is known without asking them."""

    def shutdown(self) -> None:
        """End its processes."""


class EngineModule(Protocol):
    """A kind of engine. The main process imports it, too: it imports the library in `start`."""

    def environment(self, server: PolicyServerSettings) -> dict[str, str]:
        """Environment variables of a replica's process."""

    def start(
        self, model: ModelSettings, agent: AgentSettings, server: PolicyServerSettings, seed: int
    ) -> Engine:
        """An engine for these settings, in the process of a replica; `seed` is its own."""


class WeightTransport(Protocol):
    """How weights travel from the learner to a replica, on any node."""

    def publish(self, weights: PublishedWeights) -> Any:
        """Keep weights for as long as the returned handle, or a pickled copy of it, exists."""

    async def fetch(self, handle: Any) -> PublishedWeights:
        """The weights of a handle."""


def engine_module(path: str) -> EngineModule:
    """The module of that dotted name, a value of `ENGINES`."""
    return cast(EngineModule, importlib.import_module(path))


def transport_module(path: str) -> WeightTransport:
    """The module of that dotted name, a value of `WEIGHT_TRANSPORTS`."""
    return cast(WeightTransport, importlib.import_module(path))
