"""How settings become vLLM's: arguments of an engine, environment variables of its process."""

from pathlib import Path
from typing import Any

from hgpo_rllib.config import AgentSettings, ModelSettings, PolicyServerSettings


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
        "enable_prefix_caching": True,
        "skip_tokenizer_init": True,  # prompts and responses are token ids
        "generation_config": "vllm",  # no sampling defaults from the checkpoint
        "logprobs_mode": "processed_logprobs",  # those of the distribution that is sampled
        "worker_extension_cls": "hgpo_rllib.policy_server.weights.WeightLoader",
        "disable_log_stats": True,
    }
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
