"""An in-memory engine and weight transport, added as a user would: as a module with a name."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from hgpo_rllib.policy_server.engine import Load
from hgpo_rllib.policy_server.types import (
    STARTING_WEIGHTS,
    Generation,
    Prompt,
    PublishedWeights,
    RequestFailedError,
    Sampling,
)
from hgpo_rllib.settings.policy_server import ENGINES, WEIGHT_TRANSPORTS, UpdateMode


class MemoryEngine:
    """Generate the sum of prompt and seed; the only weight is the log-probability of all tokens."""

    def __init__(self) -> None:
        self.logp, self.version = -1.0, STARTING_WEIGHTS.version
        self.calls: list[str] = []

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Engine`: an empty prompt raises RequestFailedError."""
        if not prompt.token_ids:
            raise RequestFailedError("empty")
        tokens = np.full(sampling.max_tokens, sum(prompt.token_ids) + (prompt.seed or 0), np.int32)
        logp = np.full(sampling.max_tokens, self.logp, np.float32)
        return Generation(tokens, logp, self.version, "length", 0.0)

    @asynccontextmanager
    async def receive(self, weights: PublishedWeights) -> AsyncIterator[Load]:
        """See `Engine`: a weight that is NaN raises ValueError."""

        async def load(version: str) -> None:
            if np.isnan(weights.tensors["logp"]):
                raise ValueError("logp is NaN")
            self.logp, self.version = float(weights.tensors["logp"]), version
            self.calls.append(version)

        yield load

    async def pause(self, mode: UpdateMode) -> None:
        """See `Engine`."""
        self.calls.append(f"pause: {mode}")

    async def resume(self) -> None:
        """See `Engine`."""
        self.calls.append("resume")

    async def sleep(self) -> None:
        """See `Engine`."""
        self.calls.append("sleep")

    async def wake_up(self) -> None:
        """See `Engine`."""
        self.calls.append("wake")

    async def check_health(self) -> None:
        """See `Engine`."""

    def shutdown(self) -> None:
        """See `Engine`."""


def env_vars(server: Any) -> dict[str, str]:
    """See `EngineModule`."""
    return {"MEMORY_ENGINE": "1"}


def start(*settings: Any) -> MemoryEngine:
    """See `EngineModule`."""
    return MemoryEngine()


def publish(weights: PublishedWeights) -> PublishedWeights:
    """See `WeightTransport`: the handle is the weights."""
    return weights


async def fetch(handle: PublishedWeights) -> PublishedWeights:
    """See `WeightTransport`."""
    return handle


@pytest.fixture
def named_memory() -> Iterator[None]:
    """Register this module as engine and weight transport `memory`."""
    with pytest.MonkeyPatch.context() as patch:
        for registry in (ENGINES, WEIGHT_TRANSPORTS):
            patch.setitem(registry, "memory", __name__)
        yield
