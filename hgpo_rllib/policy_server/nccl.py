"""Weight transport ``nccl``: vLLM's transfer by NCCL, from the learner's GPU to GPUs of engines.

Never run on a GPU.
"""

from functools import partial

from hgpo_rllib.policy_server.vllm_sender import fetch, publish_by

__all__ = ["fetch", "publish"]
publish = partial(publish_by, "nccl")
