"""Interfaces of inference engines and of weight transports.

Both are modules or objects, selected by name in `ENGINES` and `WEIGHT_TRANSPORTS` of
`hgpo_rllib.settings.policy_server`.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pkgutil import resolve_name
from typing import Any, Protocol, cast

from hgpo_rllib.policy_server.types import Generation, Prompt, PublishedWeights, Sampling
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.model import ModelSettings
from hgpo_rllib.settings.policy_server import PolicyServerSettings, UpdateMode

Load = Callable[[str], Awaitable[None]]
"""Loads the weights that an engine has received, under the given version."""


class Engine(Protocol):
    """A running engine with one model. Use it from one event loop.

    All methods raise `EngineDiedError` when the engine's processes have exited.
    """

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Return the response to one prompt, with log-probabilities and weight versions.

        The version of the weights that an engine starts with is `STARTING_WEIGHTS.version`.

        Raises:
            RequestFailedError: the engine rejected this prompt; other prompts are not affected.
        """

    def receive(self, weights: PublishedWeights) -> AbstractAsyncContextManager[Load]:
        """Copy weights to where the engine can load them, while it keeps generating.

        Yields a `Load`, which the caller awaits between `pause` and `resume`.
        """

    async def pause(self, mode: UpdateMode) -> None:
        """Hold new requests, handle running ones according to `mode`, and clear the caches."""

    async def resume(self) -> None:
        """Continue after `pause`."""

    async def sleep(self) -> None:
        """Finish running requests, hold new ones, and free the GPU memory; weights may be kept."""

    async def wake_up(self) -> None:
        """Allocate the GPU memory again, with the weights from before `sleep`."""

    async def check_health(self) -> None:
        """Wait for a reply from the engine's own loop, which replies between two steps."""

    def shutdown(self) -> None:
        """Stop its processes."""


class EngineModule(Protocol):
    """A module that starts an engine.

    It imports the engine's library only in `start`, because the main process imports the module.
    """

    def env_vars(self, server: PolicyServerSettings) -> dict[str, str]:
        """Return environment variables for a replica's process."""

    def start(
        self, model: ModelSettings, agent: AgentSettings, server: PolicyServerSettings, seed: int
    ) -> Engine:
        """Start an engine in a replica's process; `seed` is that of the replica."""


class WeightTransport(Protocol):
    """Transfers weights from the learner to replicas on any node."""

    def publish(self, weights: PublishedWeights) -> Any:
        """Store weights and return a handle. They are kept while it, or a pickled copy, exists.

        With `GPU_TRANSPORTS`, which need a synchronous schedule, only until the next call.
        """

    async def fetch(self, handle: Any) -> PublishedWeights:
        """Return the weights of a handle."""


def find_engine(path: str) -> EngineModule:
    """Import and return the engine at `path`, a value of `ENGINES`."""
    return cast(EngineModule, resolve_name(path))


def find_transport(path: str) -> WeightTransport:
    """Import and return the transport at `path`, a value of `WEIGHT_TRANSPORTS`."""
    return cast(WeightTransport, resolve_name(path))
