"""Runs on simulated GPUs: Ray assigns them, and each process records the GPUs it sees.

test_placement.py runs this module as a program, as it needs its own Ray. An engine that only
records calls replaces vLLM, and gloo replaces NCCL; learners, replicas, Serve, Tune and RLlib are
real.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray import tune
from ray.cluster_utils import Cluster

from hgpo_rllib.algorithm import HGPO, HGPOConfig
from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.run.cluster import LOOPBACK, node_stays_on_loopback, ray_cluster
from tests.integration.recording_engine import EVENTS_VARIABLE, NAME, record_event, register
from tests.integration.recording_learner import RecordingLearner
from tests.paths import ROOT

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


def load(run_file: str, data: str, model: str, *overrides: str) -> RunConfig:
    """Return the settings of a run file, with small games and the pocket model."""
    files = [f"env.data={data}", f"model.model_path={model}"]
    path = ROOT / "tuned_examples" / f"{run_file}.yaml"
    return load_config(path, [*SMALL, *files, *overrides])


def settings_of(config: RunConfig) -> HGPOConfig:
    """Return the run's settings, with learners that record events."""
    return HGPOConfig.from_run_config(config).training(learner_class=RecordingLearner)


def build(config: RunConfig, iterations: int = 0) -> None:
    """Start all processes of a run, and train for some iterations with a checkpoint after each."""
    algorithm = settings_of(config).build_algo()
    for _ in range(iterations):
        algorithm.train()
        algorithm.save_to_path(str(Path(os.environ[EVENTS_VARIABLE]).parent / "checkpoint"))
    algorithm.stop()
    record_event("end")
    all_gpus = ray.cluster_resources()["GPU"]
    while ray.available_resources().get("GPU") != all_gpus:  # nodes report once a second
        time.sleep(0.2)


def sweep(config: RunConfig) -> None:
    """Run a sweep of two concurrent trials of one iteration each."""
    settings = settings_of(config).training(weight_alpha=tune.grid_search([0, 1]))
    stop, folder = {"training_iteration": 1}, str(Path(os.environ[EVENTS_VARIABLE]).parent)
    run_config = tune.RunConfig(stop=stop, storage_path=folder, verbose=0)
    results = tune.Tuner(HGPO, param_space=settings, run_config=run_config).fit()
    assert not results.errors, results.errors


def main(events: str, data: str, model: str, *cases: str) -> None:
    """Run these cases."""
    register()
    hook = {"worker_process_setup_hook": "tests.integration.recording_engine.register"}
    os.environ |= {
        EVENTS_VARIABLE: events,
        "PYTHONPATH": str(ROOT),
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": hook}),
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
    with resources(CPU=8, GPU=4), ray_cluster(runs["1.5B"]):
        for name in (name for name in runs if name in cases):
            record_event("case", name=name)
            build(runs[name], iterations=name == "one GPU colocated")
        if "sweep" in cases:
            record_event("case", name="sweep")
            sweep(runs["1.5B"])
    if "two nodes" in cases:
        record_event("case", name="two nodes")
        with two_nodes(), ray_cluster(runs["7B"]):
            build(runs["7B"])


@contextmanager
def resources(**amounts: float) -> Iterator[None]:
    """Give these resources to a node that starts in the block."""
    os.environ["RAY_OVERRIDE_RESOURCES"] = json.dumps(amounts)
    yield
    del os.environ["RAY_OVERRIDE_RESOURCES"]


@contextmanager
def two_nodes() -> Iterator[None]:
    """Start two nodes with two GPUs each."""
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
