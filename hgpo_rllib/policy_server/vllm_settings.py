"""The engine ``vllm``: its arguments and the environment of a replica, from the settings.

This module does not import vLLM. `start` imports it in the process of a replica.
"""

import gc
import os
from typing import Any

import ray

from hgpo_rllib.policy_server.engine import Engine
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.model import ModelSettings
from hgpo_rllib.settings.policy_server import GPU_TRANSPORTS, PolicyServerSettings

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # values of max_lora_rank in vLLM
MAX_SOCKET_FOLDER = 70
"""Maximum length of a folder of sockets: their paths have at most 107 characters on Linux, of which
37 are a slash and a UUID, vLLM's name of a socket."""


def engine_arguments(
    model: ModelSettings, agent: AgentSettings, server: PolicyServerSettings, seed: int
) -> dict[str, Any]:
    """Return vLLM's arguments for these settings."""
    arguments: dict[str, Any] = {
        "model": str(model.model_path),
        "dtype": model.dtype,
        "seed": seed,
        "max_model_len": agent.max_prompt_tokens + agent.max_response_tokens,
        "max_num_seqs": server.max_num_seqs,
        "enforce_eager": server.enforce_eager,
        "enable_prefix_caching": server.enable_prefix_caching,
        "tensor_parallel_size": server.tensor_parallel_size,
        # Prompts and responses are token ids; only grammars need a tokenizer.
        "skip_tokenizer_init": not agent.constrain_actions,
        "structured_outputs_config": {"backend": "xgrammar"},  # as in `GrammarReader`
        "generation_config": "vllm",  # no sampling defaults from the checkpoint
        "logprobs_mode": "processed_logprobs",  # of the sampling distribution
        "worker_extension_cls": "hgpo_rllib.policy_server.vllm_engine.WorkerExtension",
        "disable_log_stats": True,
    }
    if server.weight_transport in GPU_TRANSPORTS:
        arguments["weight_transfer_config"] = {"backend": server.weight_transport}
    if model.lora_rank:
        max_rank = next(rank for rank in LORA_RANKS if rank >= model.lora_rank)
        arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": max_rank}
    if server.replica_gpus > 0:
        arguments["gpu_memory_utilization"] = server.memory_utilization
        arguments["enable_sleep_mode"] = server.colocate
        if server.tensor_parallel_size > 1:
            backend = "hgpo_rllib.policy_server.vllm_engine.TensorParallelExecutor"
            arguments["distributed_executor_backend"] = backend
    else:  # run the worker in the engine's process, to save a process and its communication
        arguments["distributed_executor_backend"] = "uni"
        # With chunked prefill vLLM rewinds the seeded generator of a request. CPU generators do
        # not support that, and the engine would die.
        arguments["enable_chunked_prefill"] = False
    return arguments


def env_vars(server: PolicyServerSettings) -> dict[str, str]:
    """See `EngineModule`. `hgpo serve` uses the same variables."""
    variables = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    if server.weight_transport == "ipc":  # CUDA's handles are pickled; from the learner alone
        variables["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    if server.replica_gpus == 0:
        variables |= {
            "VLLM_CPU_KVCACHE_SPACE": str(server.cpu_kv_cache_gib),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # else vLLM overrides the "uni" executor
            "OMP_NUM_THREADS": str(max(1, int(server.replica_cpus))),
        }
    return variables


def start(
    model: ModelSettings, agent: AgentSettings, server: PolicyServerSettings, seed: int
) -> Engine:
    """See `EngineModule`."""
    keep_sockets_in_session()
    gc.set_threshold(100_000)  # see hgpo_rllib/cli/main.py
    from hgpo_rllib.policy_server.vllm_engine import VLLMEngine

    return VLLMEngine(engine_arguments(model, agent, server, seed))


def keep_sockets_in_session() -> None:
    """Put vLLM's sockets into the folder of Ray's session, which is removed with the session.

    vLLM puts them into the temporary folder of the system and does not remove them if the engine is
    killed. Ray has no public function for the folder.
    """
    folder = ray._private.worker._global_node.get_session_dir_path()
    if len(folder) <= MAX_SOCKET_FOLDER:
        os.environ["VLLM_RPC_BASE_PATH"] = folder
