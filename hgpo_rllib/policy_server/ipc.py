"""Weight transport ``ipc``: vLLM's transfer by CUDA IPC, where learner and engine share a GPU.

Never run on a GPU.
"""

from functools import partial

from hgpo_rllib.policy_server.vllm_sender import fetch, publish_by

__all__ = ["fetch", "publish"]
publish = partial(publish_by, "ipc")
