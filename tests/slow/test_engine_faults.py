"""Engines that die or hang, and lost processes of Ray, while a policy server runs.

Real Ray, Serve and vLLM with a tiny random model. Each test prints how long it took.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from hgpo_rllib.config import RunConfig
from hgpo_rllib.models import checkpoint_form
from hgpo_rllib.policy_server import object_store
from hgpo_rllib.policy_server import server as policy_server
from hgpo_rllib.policy_server.client import PolicyClient
from hgpo_rllib.policy_server.publisher import WeightPublisher
from hgpo_rllib.policy_server.replicas import Replicas
from hgpo_rllib.policy_server.server import PolicyServer
from hgpo_rllib.policy_server.types import Prompt, Sampling, WeightTag
from hgpo_rllib.policy_server.vllm_engine import VLLMEngine
from hgpo_rllib.policy_server.vllm_settings import engine_arguments, env_vars
from hgpo_rllib.run.cluster import ray_cluster
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.model import ModelSettings
from hgpo_rllib.settings.policy_server import PolicyServerSettings
from tests.paths import ROOT
from tests.processes import Processes, command_line, wait_until

pytestmark = pytest.mark.slow
ENGINE, REPLICA, OWNER = "EngineCore", "ServeReplica:", "OwnerLiveness"
MODULE = "tests.slow.test_engine_faults"
AGENT = AgentSettings(max_prompt_tokens=64, max_response_tokens=64)
SAMPLING = Sampling(1.0, max_tokens=64, stop_token_ids=())


def tiny_model(folder: Path) -> Qwen2ForCausalLM:
    """Save and return a random model."""
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=64,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    return model


class Server:
    """A policy server with a client that works as rollouts do."""

    def __init__(self, app: str, model: Qwen2ForCausalLM) -> None:
        self.app = app
        self.replicas = Replicas.of(app, max_outage_s=300)
        self.model = model
        self.publisher = WeightPublisher(torch.float32, object_store)

    def publish(self) -> WeightTag:
        """Publish new weights."""
        with torch.no_grad():
            self.model.model.norm.weight.mul_(1.01)
        state = checkpoint_form(self.model.state_dict(), self.model.config)
        return self.publisher.publish(state)

    def play(self, weights: WeightTag, during: Callable[[], None], episodes: int = 32) -> float:
        """Play episodes of 10 turns and call `during` while they run; return the total seconds."""
        client = PolicyClient(self.replicas, SAMPLING, weights)

        async def episode(number: int) -> list[str]:
            prompts = [Prompt([number, turn, 3], seed=turn) for turn in range(10)]
            return [(await client.generate(prompt)).version for prompt in prompts]

        async def play() -> list[list[str]]:
            playing = asyncio.gather(*map(episode, range(episodes)))
            await asyncio.sleep(0.3)
            assert client.in_flight == episodes
            during()
            return await playing

        start = time.monotonic()
        played = asyncio.run(play())
        assert {version for versions in played for version in versions} == {weights.version}
        return time.monotonic() - start


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server for all tests but the last one."""
    folder = tmp_path_factory.mktemp("model")
    random = tiny_model(folder)
    model = ModelSettings(model_path=str(folder), dtype="float32")
    with pytest.MonkeyPatch.context() as patch, ray_cluster(RunConfig()):
        patch.setattr(policy_server, "HEALTH_CHECK_TIMEOUT_S", 10)
        with PolicyServer(model, AGENT, PolicyServerSettings()) as server:
            yield Server(server.app, random)


def find(name: str) -> psutil.Process:
    """Wait until exactly one child process has the name in its title; return it."""

    def only() -> list[psutil.Process]:
        below = psutil.Process().children(recursive=True)
        found = [process for process in below if name in command_line(process)]
        return found if len(found) == 1 else []

    return wait_until(only, 120, lambda: f"not one process is called {name}")[0]


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGKILL, "EngineDiedError: the engine"), (signal.SIGSTOP, "ActorDiedError: ")],
    ids=["dead", "hung"],
)
def test_requests_survive_their_engine(
    server: Server, number: signal.Signals, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The replica is replaced, its prompts are retried, and the log has the reason in one line."""
    weights = server.publish()
    usual = server.play(weights, lambda: None)
    engine, replica = find(ENGINE), find(REPLICA)
    seconds = server.play(weights, lambda: engine.send_signal(number))
    print(f"\n{number.name}: {usual:.1f} s without, {seconds:.1f} s with it")
    assert psutil.wait_procs([engine, replica], 10)[1] == []
    lines = [record.message for record in caplog.records if reason in record.message]
    assert len(lines) == 1, caplog.text
    assert lines[0].startswith("policy server: ")


def test_an_engine_that_hangs_while_it_loads_weights(server: Server) -> None:
    """Requests that wait for the update succeed with the new weights on the next replica."""
    engine, replica = find(ENGINE), find(REPLICA)
    engine.suspend()
    seconds = server.play(server.publish(), lambda: None)
    print(f"\nSIGSTOP before an update: {seconds:.1f} s")
    assert psutil.wait_procs([engine, replica], 10)[1] == []


def test_an_engine_that_dies_with_nothing_to_do_is_replaced(server: Server) -> None:
    replica = find(REPLICA)
    find(ENGINE).kill()
    assert psutil.wait_procs([replica], 10)[1] == []
    server.play(server.publish(), lambda: None)


def test_a_replica_that_is_killed_takes_its_engine_with_it(server: Server) -> None:
    engine, replica = find(ENGINE), find(REPLICA)
    server.play(server.publish(), replica.kill)
    assert psutil.wait_procs([engine], 10)[1] == []


def test_the_loss_of_the_owner_liveness_actor_ends_nothing(server: Server) -> None:
    """Ray restarts the actor, and replica and engine keep running."""
    engine, replica, owner = find(ENGINE), find(REPLICA), find(OWNER)
    server.play(server.publish(), owner.kill)
    assert find(OWNER) != owner
    time.sleep(10)
    server.play(server.publish(), lambda: None)
    assert [find(ENGINE), find(REPLICA)] == [engine, replica]


def serve_until_killed(folder: str) -> None:
    """Run a policy server in its own Ray, with a driver that does not react to losses."""
    model = ModelSettings(model_path=folder, dtype="float32")
    with ray_cluster(RunConfig()), PolicyServer(model, AGENT, PolicyServerSettings()):
        print("serving", flush=True)
        time.sleep(600)


def run_tensor_parallel_engine(folder: str) -> None:
    """Run an engine with two workers, which vLLM for CPUs starts on CPUs."""
    model = ModelSettings(model_path=folder, dtype="float32")
    two = PolicyServerSettings(replica_gpus=2, tensor_parallel_size=2)
    engine = VLLMEngine(engine_arguments(model, AGENT, two, 0))
    print(len(asyncio.run(engine.generate(Prompt([1, 2]), SAMPLING)).token_ids), flush=True)
    time.sleep(600)


def test_the_processes_of_tensor_parallelism_follow_a_killed_replica(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    code = f"from {MODULE} import *; run_tensor_parallel_engine(sys.argv[1])"
    variables = env_vars(PolicyServerSettings()) | {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output is for the test
    }
    processes = Processes()
    replica = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env=os.environ | variables | processes.environment,
        text=True,
    )
    try:
        assert replica.stdout is not None
        assert replica.stdout.readline() == f"{SAMPLING.max_tokens}\n"
        started = [processes.find(ENGINE), *(processes.find(f"Worker_TP{n}") for n in range(2))]
        replica.kill()
        assert psutil.wait_procs(started, 10)[1] == []
    finally:
        replica.kill()
        replica.wait()
        processes.assert_none()


@pytest.mark.parametrize(
    ("victim", "seconds"),
    # A raylet waits 60 s for a lost GCS before it exits.
    [("raylet/raylet", 20), ("gcs/gcs_server", 90)],
    ids=["raylet", "GCS"],
)
def test_no_engine_outlives_ray(tmp_path: Path, victim: str, seconds: float) -> None:
    tiny_model(tmp_path)
    code = f"import sys; from {MODULE} import *; serve_until_killed(sys.argv[1])"
    processes = Processes()
    driver = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env=os.environ | processes.environment,
        text=True,
    )
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "serving\n"
        engine, replica = processes.find(ENGINE), processes.find(REPLICA)
        start = time.monotonic()
        processes.find(victim).kill()
        _, left = psutil.wait_procs([engine, replica], seconds)
        print(f"\n{victim}: gone after {time.monotonic() - start:.1f} s")
        assert left == []
    finally:
        driver.kill()
        driver.wait()
        processes.assert_none()  # the clean-up of its Ray session ends the remaining processes
