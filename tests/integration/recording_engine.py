"""An engine and a transport that record their calls, registered as `recording`.

Ray imports this module in every process that it starts, so it has few imports.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray

from hgpo_rllib.policy_server import object_store
from hgpo_rllib.policy_server.engine import Engine, Load
from hgpo_rllib.policy_server.types import (
    STARTING_WEIGHTS,
    Generation,
    Prompt,
    PublishedWeights,
    Sampling,
)
from hgpo_rllib.settings.policy_server import ENGINES, WEIGHT_TRANSPORTS

EVENTS_VARIABLE = "HGPO_TEST_EVENTS"  # environment variable with the path of the event file
NAME = "recording"


def register() -> None:
    """Register the engine and the transport in this process."""
    ENGINES[NAME] = WEIGHT_TRANSPORTS[NAME] = __name__


def record_event(event: str, **more: Any) -> None:
    """Append an event, with this process's GPUs and node, to the event file."""
    node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
    line = {"event": event, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "node": node, **more}
    with Path(os.environ[EVENTS_VARIABLE]).open("a") as file:
        file.write(json.dumps(line) + "\n")


class RecordingEngine(Engine):
    """An engine that generates the same token for every prompt."""

    version = STARTING_WEIGHTS.version

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Engine`."""
        tokens = np.full(sampling.max_tokens, 5, np.int32)
        logp = np.full(sampling.max_tokens, -1.0, np.float32)
        return Generation(tokens, logp, self.version, "length", 0.0)

    @asynccontextmanager
    async def receive(self, weights: PublishedWeights) -> AsyncIterator[Load]:
        """See `Engine`."""

        async def load(version: str) -> None:
            self.version = version
            record_event("load")

        yield load

    async def sleep(self) -> None:
        """See `Engine`."""
        record_event("sleep")

    async def wake_up(self) -> None:
        """See `Engine`."""
        record_event("wake")


def env_vars(server: Any) -> dict[str, str]:
    """See `EngineModule`."""
    return {}


def start(*settings: Any) -> RecordingEngine:
    """See `EngineModule`."""
    record_event("replica")
    return RecordingEngine()


def publish(weights: PublishedWeights) -> Any:
    """See `WeightTransport`."""
    record_event("publish")
    return object_store.publish(weights)


fetch = object_store.fetch
