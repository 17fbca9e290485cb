"""Runs on GPUs that do not exist: Ray assigns them, and each process notes what it sees.

Run as a program by test_placement.py, as it needs a Ray of its own. An engine that only notes calls
replaces vLLM; learners, replicas, Serve, Tune and RLlib are real, with gloo in place of NCCL.
"""

import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray import tune
from ray.cluster_utils import Cluster
from ray.rllib.core.learner import learner_group
from ray.rllib.core.learner.torch import torch_learner

from hgpo_rllib.algorithm import HGPO, HGPOConfig
from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.learner.learner import HGPOLearner
from hgpo_rllib.policy_server import object_store
from hgpo_rllib.policy_server.engine import Load
from hgpo_rllib.policy_server.types import (
    STARTING_WEIGHTS,
    Generation,
    Prompt,
    PublishedWeights,
    Sampling,
)
from hgpo_rllib.run.cluster import LOOPBACK, node_stays_on_loopback, ray_cluster
from hgpo_rllib.settings.policy_server import ENGINES, WEIGHT_TRANSPORTS
from tests.paths import ROOT

NOTES = "HGPO_TEST_NOTES"  # environment variable with the path of the notes
NAME = "noting"
SMALL = [
    f"policy_server.engine={NAME}",
    f"policy_server.weight_transport={NAME}",
    "agent.prompt=alfworld_compact",
    "agent.max_prompt_tokens=480",
    "agent.max_response_tokens=4",
    "rollout.groups_per_iteration=1",
    "rollout.group_size=2",
    "env.max_steps=1",
    "evaluation.episodes=1",
    "learner.compute_dtype=float32",
]


def note(event: str, **more: Any) -> None:
    """Append an event of this process."""
    node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
    line = {"event": event, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "node": node, **more}
    with Path(os.environ[NOTES]).open("a") as file:
        file.write(json.dumps(line) + "\n")


class NotingEngine:
    """Answers every prompt with the same token."""

    version = STARTING_WEIGHTS.version
    has_ended = False

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
            note("load")

        yield load

    async def pause(self, mode: str) -> None:
        """See `Engine`."""

    async def resume(self) -> None:
        """See `Engine`."""

    async def sleep(self) -> None:
        """See `Engine`."""
        note("sleep")

    async def wake(self) -> None:
        """See `Engine`."""
        note("wake")

    async def ping(self) -> None:
        """See `Engine`."""

    def shutdown(self) -> None:
        """See `Engine`."""


def environment(server: Any) -> dict[str, str]:
    """See `EngineModule`."""
    return {}


def start(*settings: Any) -> NotingEngine:
    """See `EngineModule`."""
    note("replica")
    return NotingEngine()


def publish(weights: PublishedWeights) -> Any:
    """See `WeightTransport`."""
    note("publish")
    return object_store.publish(weights)


fetch = object_store.fetch


def use_fakes() -> None:
    """Patch this process; Ray calls it in every process that it starts."""
    ENGINES[NAME] = WEIGHT_TRANSPORTS[NAME] = "tests.integration.fake_gpus"
    backend_config = learner_group._get_backend_config
    learner_group._get_backend_config = lambda kind: replace(backend_config(kind), backend="gloo")
    torch_learner.get_device = lambda *_: torch.device("cpu")
    build, update = HGPOLearner.build, HGPOLearner._update

    def noted_build(self: HGPOLearner) -> None:
        note("learner")
        build(self)

    def noted_update(self: HGPOLearner, *args: Any, **kwargs: Any) -> Any:
        result = update(self, *args, **kwargs)
        note("update")
        return result

    HGPOLearner.build, HGPOLearner._update = noted_build, noted_update


def load(run_file: str, data: str, model: str, *overrides: str) -> RunConfig:
    """A run file on small games, with the pocket model in place of its own."""
    files = [f"env.data={data}", f"model.model_path={model}"]
    path = ROOT / "tuned_examples" / f"{run_file}.yaml"
    return load_config(path, [*SMALL, *files, *overrides])


def build(config: RunConfig, iterations: int = 0) -> None:
    """Start all processes of a run, and train if asked to."""
    note("main")
    algorithm = HGPOConfig.from_run_config(config).build_algo()
    for _ in range(iterations):
        algorithm.train()
    algorithm.stop()
    note("end")
    all_gpus = ray.cluster_resources()["GPU"]
    while ray.available_resources().get("GPU") != all_gpus:  # nodes report once a second
        time.sleep(0.2)


def sweep(config: RunConfig) -> None:
    """Two trials at a time, of one iteration each."""
    note("main")
    settings = HGPOConfig.from_run_config(config).training(weight_alpha=tune.grid_search([0, 1]))
    stop, folder = {"training_iteration": 1}, str(Path(os.environ[NOTES]).parent)
    run_config = tune.RunConfig(stop=stop, storage_path=folder, verbose=0)
    results = tune.Tuner(HGPO, param_space=settings, run_config=run_config).fit()
    assert not results.errors, results.errors


def main(notes: str, data: str, model: str) -> None:
    """Play every case."""
    use_fakes()
    hook = {"worker_process_setup_hook": "tests.integration.fake_gpus.use_fakes"}
    os.environ |= {
        NOTES: notes,
        "PYTHONPATH": str(ROOT),
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": hook}),
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    os.environ.pop("RAY_ADDRESS", None)
    colocated = ["policy_server.colocate=true", "policy_server.num_replicas=4"]
    runs = {
        "1.5B": load("alfworld_qwen1.5b_hgpo", data, model),
        "7B": load("alfworld_qwen7b_hgpo", data, model),
        "7B colocated": load(
            "alfworld_qwen7b_hgpo", data, model, *colocated, "cluster.num_learners=4"
        ),
        "one GPU": load("alfworld_smollm2_135m", data, model),
        "one GPU colocated": load(
            "alfworld_qwen1.5b_hgpo", data, model, "policy_server.colocate=true"
        ),
    }
    with resources(CPU=32, GPU=4), ray_cluster(runs["1.5B"]):
        for name, config in runs.items():
            note("case", name=name)
            build(config, iterations=name == "one GPU colocated")
        note("case", name="sweep")
        sweep(runs["1.5B"])
    with two_nodes():
        note("case", name="two nodes")
        with ray_cluster(runs["7B"]):
            build(runs["7B"])


@contextmanager
def resources(**amounts: float) -> Iterator[None]:
    """Let a node that starts in the block have these."""
    os.environ["RAY_OVERRIDE_RESOURCES"] = json.dumps(amounts)
    yield
    del os.environ["RAY_OVERRIDE_RESOURCES"]


@contextmanager
def two_nodes() -> Iterator[None]:
    """Two nodes of two GPUs each."""
    node = {"num_cpus": 16, "num_gpus": 2, "include_dashboard": False, "node_ip_address": LOOPBACK}
    with node_stays_on_loopback():
        nodes = Cluster(initialize_head=True, head_node_args=node)
        nodes.add_node(**node)
        os.environ["RAY_ADDRESS"] = nodes.address
        try:
            yield
        finally:
            nodes.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
