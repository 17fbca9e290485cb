"""An engine that returns the responses of a recorded run after their recorded latencies.

With it, Ray Serve, replicas and clients are those of training, and no model is computed.
"""

import asyncio
import os
import pickle
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hgpo_rllib.config import RunConfig
from hgpo_rllib.policy_server.engine import Engine, Load
from hgpo_rllib.policy_server.server import PolicyServer
from hgpo_rllib.policy_server.types import (
    STARTING_WEIGHTS,
    Generation,
    Prompt,
    PublishedWeights,
    Sampling,
)
from hgpo_rllib.results.runs import Run
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.model import ModelSettings
from hgpo_rllib.settings.policy_server import ENGINES, PolicyServerSettings

RESPONSES = "HGPO_REPLAYED_RESPONSES"
"""Environment variable of a replica with the path of the recorded responses."""


def recorded_responses(run: Run) -> list[Generation]:
    """Return the responses of a run; ``engine_s`` is the latency that the rollout recorded."""
    return [
        Generation(
            np.asarray(step.response_ids, np.int32),
            np.asarray(step.behavior_logp, np.float32),
            version="",
            finish_reason="length" if step.response_truncated else "stop",
            engine_s=float(step.request_s),
        )
        for step in run.steps.itertuples()
    ]


@contextmanager
def replaying(config: RunConfig, recorded: Sequence[Generation]) -> Iterator[str]:
    """Start a policy server that replays responses, and yield its application's name.

    Ray and Serve must be running on this machine only: the replica reads a local file.
    """
    settings: dict[str, Any] = {"engine": "replay", "weight_transport": "object_store"}
    settings |= {"num_replicas": 1, "max_replicas": None}
    settings |= {"replica_cpus": 0, "replica_gpus": 0, "replica_resources": {}}
    server = config.policy_server.model_copy(update=settings)
    with tempfile.TemporaryDirectory(prefix="hgpo-replay-") as folder:
        file = Path(folder, "responses.pickle")
        file.write_bytes(pickle.dumps(list(recorded)))
        ENGINES["replay"], os.environ[RESPONSES] = __name__, str(file)
        try:
            with PolicyServer(config.model, config.agent, server) as running:
                yield running.app
        finally:
            del ENGINES["replay"], os.environ[RESPONSES]


class ReplayEngine(Engine):
    """Return recorded responses after their latencies; the inherited methods do nothing."""

    def __init__(self, recorded: Sequence[Generation]):
        self._recorded = recorded
        self._version = STARTING_WEIGHTS.version

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Return the response that the prompt's seed selects."""
        response = self._recorded[(prompt.seed or 0) % len(self._recorded)]
        await asyncio.sleep(response.engine_s)
        return replace(response, version=self._version)

    @asynccontextmanager
    async def receive(self, weights: PublishedWeights) -> AsyncIterator[Load]:
        """Only keep the version."""

        async def load(version: str) -> None:
            self._version = version

        yield load


def env_vars(server: PolicyServerSettings) -> dict[str, str]:
    """See `EngineModule`."""
    return {RESPONSES: os.environ[RESPONSES]}


def start(
    model: ModelSettings, agent: AgentSettings, server: PolicyServerSettings, seed: int
) -> ReplayEngine:
    """See `EngineModule`."""
    recorded = pickle.loads(Path(os.environ[RESPONSES]).read_bytes())
    return ReplayEngine(recorded)  # type: ignore[abstract]
