"""Settings become arguments of vLLM and options of Serve."""

from typing import Any

import pytest
from ray import serve

from hgpo_rllib.config import ConfigError, RunConfig, parse_config
from hgpo_rllib.policy_server.deployment import PolicyReplica, replica_seed
from hgpo_rllib.policy_server.server import replica_options
from hgpo_rllib.policy_server.vllm_settings import engine_arguments


def arguments(**server: Any) -> dict[str, Any]:
    run = parse_config({"policy_server": server, "model": {"model_path": "org/model"}})
    return engine_arguments(run.model, run.agent, run.policy_server, seed=3)


def options(**server: Any) -> dict[str, Any]:
    return replica_options(parse_config({"policy_server": server}).policy_server)


def test_arguments_are_vllm_s() -> None:
    """An engine of a GPU with everything set."""
    from vllm import AsyncEngineArgs

    given = arguments(tensor_parallel_size=2, replica_gpus=2, enable_prefix_caching=False)
    engine = AsyncEngineArgs(**given)
    assert (engine.tensor_parallel_size, engine.enable_prefix_caching) == (2, False)
    assert "distributed_executor_backend" not in given  # several processes, as vLLM does by itself
    assert engine.weight_transfer_config.backend == "hgpo"


def test_one_process_on_a_cpu() -> None:
    given = arguments()
    assert (given["tensor_parallel_size"], given["enable_prefix_caching"]) == (1, True)
    assert given["distributed_executor_backend"] == "uni"


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


@pytest.mark.parametrize("server", [{"num_replicas": 2}, {"max_replicas": 2}])
def test_several_replicas_are_chosen_by_session(server: dict[str, Any]) -> None:
    router = options(**server)["request_router_config"].get_request_router_class()
    assert router.__name__ == "ConsistentHashRouter"


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"num_replicas": 3, "max_replicas": 2}, "max_replicas is below num_replicas"),
        ({"tensor_parallel_size": 2}, "as many replica_gpus"),
        ({"tensor_parallel_size": 2, "replica_gpus": 1}, "as many replica_gpus"),
        ({"update_mode": "drop"}, "update_mode"),
        ({"engine": "vlm"}, "no such engine: give one of vllm"),
        ({"weight_transport": "nccl"}, "no such weight_transport: give one of object_store"),
    ],
)
def test_settings_that_do_not_fit_are_refused(server: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"policy_server": server})
    assert RunConfig().policy_server.update_mode == "wait"
