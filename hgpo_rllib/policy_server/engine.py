"""How settings become vLLM's and Serve's: an engine's arguments, a replica's environment."""

from pathlib import Path
from typing import Any

import numpy as np

from hgpo_rllib.config import AgentSettings, ModelSettings, PolicyServerSettings
from hgpo_rllib.policy_server.adapters import room_for

SESSION_ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
MAX_BATCH = 16  # prompts per call: a call costs milliseconds, a prompt in it a tenth of that


def engine_arguments(
    model: ModelSettings, agent: AgentSettings, server: PolicyServerSettings, seed: int
) -> dict[str, Any]:
    """vLLM's arguments for these settings."""
    path = str(model.model_path)
    arguments: dict[str, Any] = {
        # Replicas may run in another folder; what is no directory is a name on a hub.
        "model": str(Path(path).absolute()) if Path(path).is_dir() else path,
        "dtype": model.dtype,
        "seed": seed,
        "max_model_len": agent.max_prompt_tokens + agent.max_response_tokens,
        "max_num_seqs": server.max_num_seqs,
        "enforce_eager": server.enforce_eager,
        "enable_prefix_caching": server.enable_prefix_caching,
        "tensor_parallel_size": server.tensor_parallel_size,
        "skip_tokenizer_init": True,  # prompts and responses are token ids
        "generation_config": "vllm",  # no sampling defaults from the checkpoint
        "logprobs_mode": "processed_logprobs",  # those of the distribution that is sampled
        # The two go together: workers import the extension's module, which registers the backend.
        "worker_extension_cls": "hgpo_rllib.policy_server.weight_engine.WorkerExtension",
        "weight_transfer_config": {"backend": "hgpo"},
        "disable_log_stats": True,
    }
    if model.lora_rank:
        room = room_for(model.lora_rank)
        arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": room}
    if server.replica_gpus > 0:
        arguments["gpu_memory_utilization"] = server.memory_utilization
    else:  # the worker runs inside the engine's process: one less to start and to talk to
        arguments["distributed_executor_backend"] = "uni"
        # A prompt that is read in parts makes vLLM rewind the seeded generators of its request,
        # which those of a CPU cannot do: the engine would die.
        arguments["enable_chunked_prefill"] = False
    return arguments


def replica_environment(server: PolicyServerSettings) -> dict[str, str]:
    """Environment variables of a replica's process."""
    variables = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    if server.replica_gpus == 0:
        variables |= {
            "VLLM_CPU_KVCACHE_SPACE": str(server.cpu_kv_cache_gib),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # else vLLM overrides the "uni" executor
            "OMP_NUM_THREADS": str(max(1, int(server.replica_cpus))),
        }
    return variables


def replica_seed(seed: int, replica: int) -> int:
    """The engine's seed in the replica of that rank: replicas must not draw the same."""
    return int(np.random.SeedSequence((seed, replica)).generate_state(1)[0])


def replica_options(server: PolicyServerSettings) -> dict[str, Any]:
    """Serve's options of a deployment: how many replicas, what each reserves, who gets a call."""
    options: dict[str, Any] = {
        "num_replicas": server.num_replicas,
        "ray_actor_options": {
            "num_cpus": server.replica_cpus,
            "num_gpus": server.replica_gpus,
            "resources": server.replica_resources,
            "runtime_env": {"env_vars": replica_environment(server)},
        },
    }
    if server.max_replicas is not None:
        options["num_replicas"] = "auto"
        options["autoscaling_config"] = {
            "min_replicas": server.num_replicas,
            "max_replicas": server.max_replicas,
            "target_ongoing_requests": max(1, server.max_num_seqs // MAX_BATCH),
        }
    if max(server.num_replicas, server.max_replicas or 0) > 1:
        from ray.serve.config import RequestRouterConfig  # `hgpo serve` comes here without Ray

        options["request_router_config"] = RequestRouterConfig(request_router_class=SESSION_ROUTER)
    return options
