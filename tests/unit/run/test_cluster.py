"""Checks before Ray starts."""

import errno
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve
from ray.exceptions import ActorAlreadyExistsError

from hgpo_rllib.config import RunConfig, parse_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.placement import check_run
from hgpo_rllib.policy_server import openai_server
from hgpo_rllib.policy_server.deployment import check_model_is_here
from hgpo_rllib.run import cluster
from hgpo_rllib.run.cluster import check_address, protect_token, ray_cluster, start_serve
from hgpo_rllib.run.inputs import LOOPBACK, check_dashboard_port, check_inputs


def test_a_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A used port raises an error before data are generated, unless a cluster already runs."""
    with socket.socket() as server:
        server.bind((LOOPBACK, 0))
        server.listen()
        port = server.getsockname()[1]
        config = parse_config({"cluster": {"dashboard_port": port}})
        with pytest.raises(ConfigError, match=f"port {port} is in use"):
            check_inputs(config)
        monkeypatch.setenv("RAY_ADDRESS", "auto")
        check_dashboard_port(config)
        monkeypatch.delenv("RAY_ADDRESS")
        gateway = parse_config({"rollout": {"gateway_port": port}})
        with pytest.raises(ConfigError, match=f"rollout.gateway_port={port} cannot be used"):
            check_inputs(gateway)
    check_inputs(config)
    check_inputs(gateway)


def test_the_token_is_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The token's file is private, and an existing token is kept."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    token = tmp_path / ".ray" / "auth_token"
    protect_token()
    assert token.stat().st_mode & 0o777 == 0o600
    written = token.read_text()
    assert len(written) >= 32
    token.chmod(0o644)
    protect_token()
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.read_text() == written


def test_a_private_token_on_a_read_only_file_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A token that is private already is not changed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.touch(0o600)

    def fail(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "chmod", fail)
    protect_token()


def test_a_token_of_the_environment_needs_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    protect_token()
    assert list(tmp_path.iterdir()) == []


def test_serve_that_another_command_starts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting Serve is retried if another command has taken the controller's name."""
    calls: list[dict[str, Any]] = []

    def start(**arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            raise ActorAlreadyExistsError("the name is taken")

    monkeypatch.setattr(serve, "start", start)
    start_serve()
    assert len(calls) == 2
    assert calls[0] == calls[1]


def test_an_address_for_clients_is_refused() -> None:
    for address in ("auto", "10.0.0.1:6379"):
        check_address(address)
    for address in ("ray://10.0.0.1:10001", "http://127.0.0.1:8265"):
        with pytest.raises(ConfigError, match="ray job submit"):
            check_address(address)


def test_a_cluster_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names RAY_ADDRESS; Ray's own error is raised here without its long timeout."""

    def init(**arguments: Any) -> None:
        raise ConnectionError("Failed to connect to Ray cluster at 127.0.0.1:6379")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    with (
        pytest.raises(ConfigError, match=r"reached at RAY_ADDRESS=127\.0\.0\.1:6379: start one"),
        ray_cluster(parse_config({})),
    ):
        pass


def test_sigterm_before_the_block(monkeypatch: pytest.MonkeyPatch, signals: None) -> None:
    """SIGTERM interrupts as soon as Ray has started; Ray's own handler exits with code 15."""
    stopped = []

    def init(**arguments: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: stopped.append(True))
    monkeypatch.setattr(cluster, "alive_nodes", lambda: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), ray_cluster(parse_config({})):
        pass
    assert stopped == [True]
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_interrupt_while_ray_starts(monkeypatch: pytest.MonkeyPatch, signals: None) -> None:
    """This process leaves the Ray that it has started."""
    stopped = []

    def init_with_handler(**_: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as Ray does
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ray, "shutdown", lambda: stopped.append(True))
    monkeypatch.setattr(cluster, "protect_token", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for init in (lambda **_: signal.raise_signal(signal.SIGTERM), init_with_handler):
        monkeypatch.setattr(ray, "init", init)
        with pytest.raises(KeyboardInterrupt), ray_cluster(parse_config({})):
            pass
    assert stopped == [True, True]


def run(learner_gpus: float = 0, num_learners: int = 0, **server: Any) -> RunConfig:
    cluster = {"learner_gpus": learner_gpus, "num_learners": num_learners}
    return parse_config({"policy_server": server, "cluster": cluster})


@pytest.mark.parametrize(
    ("config", "nodes"),
    [
        (run(), [{"CPU": 1}]),
        (run(replica_cpus=0), [{}]),
        (run(num_replicas=2), [{"CPU": 1}, {"CPU": 1}]),
        (run(0.5, 1, replica_gpus=0.5), [{"CPU": 1, "GPU": 1}]),
        (run(0.2, 1, replica_gpus=0.1, num_replicas=7), [{"CPU": 9, "GPU": 0.9}]),
        (run(1, 1, replica_gpus=1), [{"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 1}]),
        (run(1, 1, replica_gpus=1), [{"CPU": 1}, {"CPU": 1, "GPU": 2}]),  # of a sweep
        (run(replica_resources={"rollout": 1}), [{"CPU": 2}, {"CPU": 1, "rollout": 1}]),
        (run(num_learners=2), [{"CPU": 3}]),
        # The replica starts before the learners, on the only node that it can use.
        (
            run(num_learners=2, replica_resources={"rollout": 1}),
            [{"CPU": 2, "rollout": 1}, {"CPU": 2}],
        ),
        (run(1, num_learners=2), [{"CPU": 1, "GPU": 1}, {"GPU": 1}]),
        (run(1, num_learners=2).without_learners(), [{"CPU": 1}]),
        (run(1, 2, replica_gpus=1, num_replicas=2, colocate=True), [{"CPU": 2, "GPU": 2}]),
        (
            run(1, 2, replica_gpus=1, num_replicas=2, colocate=True),
            [{"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 1}, {"CPU": 1}],
        ),
        (run(1, 2, replica_gpus=1, num_replicas=2, colocate=True), [{"CPU": 2, "GPU": 4}]),
        (run(1, 1, replica_gpus=1, colocate=True), [{"CPU": 2, "GPU": 1}, {"CPU": 2, "GPU": 1}]),
        (run(1, 1, replica_gpus=1, colocate=True).without_learners(), [{"CPU": 1, "GPU": 1}]),
        (
            run(0.5, 1, replica_gpus=0.5, weight_transport="ipc"),
            [{"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 0}],
        ),
    ],
)
def test_what_the_nodes_hold_is_accepted(config: RunConfig, nodes: list[dict]) -> None:
    check_run(config.cluster, config.policy_server, nodes)


@pytest.mark.parametrize(
    ("config", "nodes", "said"),
    [
        # Together the nodes have enough, but a replica runs on one node.
        (run(replica_cpus=2), [{"CPU": 1}, {"CPU": 1}], ["2 CPU each", "holds 0"]),
        (run(num_replicas=3), [{"CPU": 1}, {"CPU": 1}], ["num_replicas=3", "holds 2"]),
        (run(1, 1), [{"CPU": 9}], ["num_learners=1", "1 GPU each", "holds 0"]),
        (run(num_learners=3), [{"CPU": 2}], ["num_learners=3", "1 CPU each"]),
        (run(num_learners=2), [{"CPU": 2}], ["num_learners=2", "holds 1"]),
        (run(1, num_learners=2), [{"CPU": 9, "GPU": 1}], ["num_learners=2", "1 GPU each"]),
        (
            run(1, 1, replica_gpus=1),
            [{"CPU": 9, "GPU": 1}],
            ["num_learners=1", "1 GPU each", "holds 0"],
        ),
        (run(1, 1, replica_gpus=0.5), [{"CPU": 9, "GPU": 1}], ["num_learners=1", "1 GPU each"]),
        (
            run(replica_resources={"rollout": 1}, num_replicas=2),
            [{"CPU": 2}, {"CPU": 4, "rollout": 1}],
            ["1 rollout each", "holds 1"],
        ),
        (run(replica_cpus=0, replica_resources={"rollout": 1}), [{"CPU": 2}], ["1 rollout each"]),
        (
            run(1, 2, replica_gpus=1, num_replicas=2, colocate=True),
            [{"CPU": 9, "GPU": 1}],
            ["1 GPU and 1 CPU each", "holds 1"],
        ),
        (
            run(0.5, 1, replica_gpus=0.5, weight_transport="ipc"),
            [{"CPU": 9, "GPU": 1}, {"CPU": 9, "GPU": 1}],
            ["weight_transport=ipc", "use one node with GPUs"],
        ),
        # On the node with a spare GPU, Ray could assign it to both replicas.
        (
            run(1, 2, replica_gpus=1, num_replicas=2, colocate=True),
            [{"CPU": 9, "GPU": 2}, {"CPU": 9, "GPU": 1}],
            ["num_learners=2 on 2 nodes", "two engines on one of their 3 GPUs"],
        ),
    ],
)
def test_what_no_node_holds_is_named(config: RunConfig, nodes: list[dict], said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_run(config.cluster, config.policy_server, nodes)
    for text in said:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cluster": {"num_learners": 0}}, "needs learner processes"),
        ({"cluster": {"learner_gpus": 0.5}}, "on whole GPUs"),
        ({"policy_server": {"replica_gpus": 0.5}}, "on whole GPUs"),
        ({"policy_server": {"num_replicas": 2}}, "num_replicas=1, as cluster.num_learners"),
        ({"policy_server": {"max_replicas": 2}}, "max_replicas=null"),
        ({"rollout": {"schedule": "one_step_off"}}, "schedule=synchronous"),
    ],
)
def test_learners_and_replicas_that_cannot_take_turns(changes: dict, said: str) -> None:
    settings: dict[str, dict] = {
        "cluster": {"num_learners": 1, "learner_gpus": 1},
        "policy_server": {"replica_gpus": 1, "colocate": True},
        "rollout": {},
    }
    parse_config(settings)
    for section, values in changes.items():
        settings[section] |= values
    with pytest.raises(ConfigError, match=said):
        parse_config(settings)


def test_learners_that_could_share_a_gpu_are_refused() -> None:
    """NCCL needs a GPU for each learner; a single learner can share its GPU with an engine."""
    run(0.5, 1, replica_gpus=0.5)
    run(0.6, 2, replica_gpus=0.4)
    with pytest.raises(ConfigError, match="two learners on one GPU"):
        run(0.5, 2, replica_gpus=0.5)


def test_engines_on_cpus_need_a_build_for_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without GPUs is refused if vLLM was built for GPUs."""
    monkeypatch.setattr(openai_server, "vllm_is_for_cpu", lambda: False)
    with pytest.raises(ConfigError, match="HGPO_BACKEND=cpu make setup"):
        check_inputs(run())


@pytest.mark.parametrize("resources", [{"CPU": 1}, {"rollout": 0}])
def test_resources_that_are_none_are_refused(resources: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"policy_server\.replica_resources"):
        run(replica_resources=resources)


def test_a_model_that_a_node_does_not_have_is_named(tmp_path: Path) -> None:
    """A missing local path raises an error; a name on a hub is not checked."""
    check_model_is_here(str(tmp_path))
    check_model_is_here("Qwen/Qwen2.5-1.5B-Instruct")
    with pytest.raises(FileNotFoundError, match="that all nodes share"):
        check_model_is_here(str(tmp_path / "model"))
