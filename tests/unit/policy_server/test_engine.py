"""Settings become arguments of vLLM and options of Serve."""

import asyncio
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve.exceptions import DeploymentUnavailableError

from hgpo_rllib.config import RunConfig, parse_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.policy_server import deployment
from hgpo_rllib.policy_server.deployment import PolicyReplica, replica_seed
from hgpo_rllib.policy_server.router import GroupRouter
from hgpo_rllib.policy_server.server import PolicyServer, replica_options
from hgpo_rllib.policy_server.types import EngineDiedError, Prompt, RequestFailedError, Sampling
from hgpo_rllib.policy_server.vllm_settings import engine_arguments
from hgpo_rllib.settings.policy_server import WEIGHT_TRANSPORTS
from tests.unit.policy_server.memory_engine import MemoryEngine


def arguments(**server: Any) -> dict[str, Any]:
    run = parse_config({"policy_server": server, "model": {"model_path": "org/model"}})
    return engine_arguments(run.model, run.agent, run.policy_server, seed=3)


def options(**server: Any) -> dict[str, Any]:
    return replica_options(parse_config({"policy_server": server}).policy_server)


def test_arguments_are_vllm_s() -> None:
    """vLLM accepts the engine arguments, including those for two GPUs."""
    from vllm import AsyncEngineArgs

    given = arguments(tensor_parallel_size=2, replica_gpus=2, enable_prefix_caching=False)
    engine = AsyncEngineArgs(**given)
    assert (engine.tensor_parallel_size, engine.enable_prefix_caching) == (2, False)
    executor = resolve_name(given["distributed_executor_backend"])
    assert executor.__name__ == "TensorParallelExecutor"
    assert engine.weight_transfer_config is None


TRANSPORTS: dict[str, dict[str, Any]] = {
    "nccl": {"cluster": {"num_learners": 2, "learner_gpus": 1}, "policy_server.replica_gpus": 1},
    "ipc": {
        "cluster": {"num_learners": 1, "learner_gpus": 1},
        "policy_server.replica_gpus": 1,
        "policy_server.colocate": True,
    },
}


def with_transport(name: str, **changes: Any) -> RunConfig:
    """Return settings that the transport supports, with changes."""
    data: dict[str, Any] = {"policy_server": {"weight_transport": name}}
    for key, value in (TRANSPORTS[name] | changes).items():
        section, _, setting = key.partition(".")
        data.setdefault(section, {}).update({setting: value} if setting else value)
    return parse_config(data)


@pytest.mark.parametrize("name", TRANSPORTS)
def test_vllm_s_transports_are_engines_of_that_name(name: str) -> None:
    """vLLM's transports select its backend of that name; runs without learners use none."""
    from vllm import AsyncEngineArgs

    run = with_transport(name, model={"model_path": "org/model"})
    engine = AsyncEngineArgs(**engine_arguments(run.model, run.agent, run.policy_server, seed=3))
    assert engine.weight_transfer_config.backend == name
    variables = replica_options(run.policy_server)["ray_actor_options"]["runtime_env"]["env_vars"]
    assert ("VLLM_ALLOW_INSECURE_SERIALIZATION" in variables) == (name == "ipc")
    assert run.without_learners().policy_server.weight_transport == "object_store"


ON_CPU = {"num_learners": 1, "learner_gpus": 0}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("nccl", {"cluster": ON_CPU}, "nccl needs a GPU for each process"),
        (
            "ipc",
            {"cluster": ON_CPU, "policy_server.colocate": False},
            "ipc needs one learner and one replica that",
        ),
        ("nccl", {"policy_server.replica_gpus": 0}, "nccl needs a GPU for each process"),
        ("nccl", {"model": {"lora_rank": 8}}, "nccl needs a model without adapters"),
        ("ipc", {"model": {"lora_rank": 8}}, "ipc needs a model without adapters"),
        ("nccl", {"rollout": {"schedule": "one_step_off"}}, "set rollout.schedule=synchronous"),
        ("ipc", {"policy_server.colocate": False}, "ipc needs one learner and one replica that"),
        (
            "ipc",
            {
                "cluster": {"num_learners": 2, "learner_gpus": 1},
                "policy_server.num_replicas": 2,
            },
            "ipc needs one learner and one replica that",
        ),
        (
            "nccl",
            {
                "cluster": {"num_learners": 1, "learner_gpus": 1},
                "policy_server.colocate": True,
            },
            "nccl needs a GPU for each process",
        ),
        (
            "nccl",
            {
                "cluster": {"num_learners": 1, "learner_gpus": 0.5},
                "policy_server.replica_gpus": 0.5,
            },
            "nccl needs a GPU for each process",
        ),
    ],
)
def test_transports_that_cannot_work_are_refused(
    name: str, changes: dict[str, Any], message: str
) -> None:
    """Unsupported settings of a transport raise a one-line error that suggests `object_store`."""
    with pytest.raises(ConfigError, match=message) as error:
        with_transport(name, **changes)
    assert str(error.value).endswith("or policy_server.weight_transport=object_store")
    assert "\n" not in str(error.value)


def test_ipc_with_fractions_of_a_gpu() -> None:
    """IPC supports learners and replicas that share a GPU by fractions, without `colocate`."""
    shared = {"num_learners": 1, "learner_gpus": 0.5}
    changes = {"policy_server.replica_gpus": 0.5, "policy_server.colocate": False}
    assert with_transport("ipc", cluster=shared, **changes).policy_server.weight_transport == "ipc"


def test_transports_of_others_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transports of other packages are not checked for GPUs; only vLLM's need them."""
    monkeypatch.setitem(WEIGHT_TRANSPORTS, "mine", "my.module")
    assert parse_config({"policy_server": {"weight_transport": "mine"}})


def test_one_process_on_a_cpu() -> None:
    given = arguments()
    assert (given["tensor_parallel_size"], given["enable_prefix_caching"]) == (1, True)
    assert given["distributed_executor_backend"] == "uni"


def test_the_share_of_a_gpu() -> None:
    """An engine on a GPU takes a share of its memory, and can sleep if it is colocated."""
    given = arguments(replica_gpus=0.5, memory_utilization=0.3)
    assert (given["gpu_memory_utilization"], given["enable_sleep_mode"]) == (0.3, False)
    assert "distributed_executor_backend" not in given
    shared = {"num_learners": 1, "learner_gpus": 1}
    server = {"replica_gpus": 1, "colocate": True}
    run = parse_config({"cluster": shared, "policy_server": server})
    assert engine_arguments(run.model, run.agent, run.policy_server, 3)["enable_sleep_mode"]


@pytest.mark.parametrize(("cpus", "threads"), [(0, "1"), (0.5, "1"), (2.5, "2")])
def test_threads_of_an_engine_on_a_cpu(cpus: float, threads: str) -> None:
    """An engine has as many threads as CPUs, and at least one."""
    variables = options(replica_cpus=cpus)["ray_actor_options"]["runtime_env"]["env_vars"]
    assert variables["OMP_NUM_THREADS"] == threads


def test_replicas_draw_from_seeds_of_their_own() -> None:
    seeds = [replica_seed(seed, replica) for seed in (0, 1) for replica in range(4)]
    assert len(set(seeds)) == 8
    assert replica_seed(0, 0) == seeds[0]
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_replicas_are_fixed_unless_there_is_a_maximum() -> None:
    assert options()["num_replicas"] == 1
    assert "request_router_config" not in options()
    assert options(num_replicas=2)["num_replicas"] == 2
    scaled = serve.deployment(
        PolicyReplica, **options(num_replicas=2, max_replicas=4, max_num_seqs=64)
    )._deployment_config.autoscaling_config
    assert (scaled.min_replicas, scaled.max_replicas) == (2, 4)
    assert scaled.get_target_ongoing_requests() == 4
    few = options(max_replicas=2, max_num_seqs=8)["autoscaling_config"]
    assert few["target_ongoing_requests"] == 1  # Serve refuses 0


def test_sleep_while_no_replica_runs(caplog: pytest.LogCaptureFixture) -> None:
    """Putting the engines to sleep is a warning if none is running."""

    class Unavailable:
        def broadcast(self, method: str) -> None:
            raise DeploymentUnavailableError(DeploymentID("policy"))

    server = PolicyServer.__new__(PolicyServer)
    server._handle = Unavailable()
    server.sleep()
    (line,) = caplog.messages
    assert "while the engines went to sleep" in line


def test_engines_that_fail_to_sleep(caplog: pytest.LogCaptureFixture) -> None:
    """A lost engine is a warning, and another error is raised."""
    results = [None, EngineDiedError("lost"), ValueError("a defect")]
    call = SimpleNamespace(results=lambda return_exceptions: results)
    server = PolicyServer.__new__(PolicyServer)
    server._handle = SimpleNamespace(broadcast=lambda method: call)
    with pytest.raises(ValueError, match="a defect"):
        server.sleep()
    (line,) = caplog.messages
    assert "EngineDiedError: lost while the engines went to sleep" in line


def test_the_replicas_of_a_group() -> None:
    """Replicas after that of a group are tried if it rejects a request, from the first again."""
    router = GroupRouter.__new__(GroupRouter)
    router._num_fallback_replicas = 2
    found = [ReplicaID(name, DeploymentID("policy")) for name in "cabd"]
    for replicas, expected in ((found, ["bcd", "dab"]), (found[:2], ["ca", "ca"]), ([], ["", ""])):
        router._replica_set_snapshot = frozenset(replicas)
        ranked = [router._lookup_ranked_replicas(f"0/train/{number}") for number in (5, 7)]
        assert ["".join(each.unique_id for each in ids) for ids in ranked] == expected


@pytest.mark.parametrize("server", [{"num_replicas": 2}, {"max_replicas": 2}])
def test_several_replicas_are_chosen_by_session(server: dict[str, Any]) -> None:
    router = options(**server)["request_router_config"].get_request_router_class()
    assert router.__name__ == "GroupRouter"


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"num_replicas": 3, "max_replicas": 2}, "max_replicas=2 is below num_replicas=3"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2 and replica_gpus=0.*set both"),
        ({"tensor_parallel_size": 2, "replica_gpus": 1}, "set both"),
        ({"replica_gpus": 2}, "tensor_parallel_size=1 and replica_gpus=2"),
        ({"update_mode": "drop"}, "update_mode"),
        ({"engine": "vlm"}, "no such engine: give one of vllm"),
        ({"weight_transport": "rdma"}, "weight_transport: give one of object_store, nccl, ipc"),
    ],
)
def test_settings_that_do_not_fit_are_refused(server: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"policy_server": server})
    assert RunConfig().policy_server.update_mode == "wait"


def test_a_response_that_vllm_ends_with_an_error_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response that vLLM ends with an error raises RequestFailedError."""
    from vllm.outputs import CompletionOutput

    from hgpo_rllib.policy_server.vllm_engine import VLLMEngine

    async def draw(*_: Any) -> CompletionOutput:
        return CompletionOutput(0, "", [5, 6], None, None, finish_reason="error")

    engine = VLLMEngine.__new__(VLLMEngine)
    monkeypatch.setattr(engine, "_sample", draw, raising=False)
    with pytest.raises(RequestFailedError, match="vLLM ended the response with an error"):
        asyncio.run(engine.generate(Prompt([1]), Sampling(1.0, 4, ())))


def test_a_replica_whose_engine_has_died_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica whose engine has died exits at the next health check, without a request."""

    class DeadEngine(MemoryEngine):
        async def check_health(self) -> None:
            raise EngineDiedError("the engine died")

    replica, exits = PolicyReplica.__new__(PolicyReplica), []
    monkeypatch.setattr(deployment, "EXIT_DELAY_S", 0)
    monkeypatch.setattr(deployment, "end_process", lambda: exits.append(1))

    async def check() -> None:
        replica._engine = MemoryEngine()
        await replica.check_health()
        await asyncio.sleep(0)
        assert exits == []
        replica._engine = DeadEngine()
        with pytest.raises(EngineDiedError):
            await replica.check_health()
        await asyncio.sleep(0.01)

    asyncio.run(check())
    assert exits == [1]
