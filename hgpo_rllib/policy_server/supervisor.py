"""Runs vLLM's server for `hgpo serve`, and leaves nothing of it behind, whatever is killed.

``python -m hgpo_rllib.policy_server.supervisor FOLDER COMMAND…`` ends with the command, and deletes
FOLDER. As soon as standard input ends, it kills the command with all its processes: the system
closes that pipe for the process at its other side, however that process ended. At SIGTERM it sends
the command `DRAIN`, which lets running requests finish.

When this process itself is killed, the command ends by `die_with_parent`.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import FrameType

from hgpo_rllib.policy_server.parent_death import die_with_parent

DRAIN = signal.SIGUSR1
"""vLLM has handlers of its own for SIGINT and SIGTERM, which accept requests until the end."""


def supervise(command: list[str], folder: Path) -> int:
    """Run the command until it ends, or standard input does; its exit code."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )

    def drain(number: int, frame: FrameType | None) -> None:
        process.send_signal(DRAIN)

    signal.signal(signal.SIGTERM, drain)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when
    try:
        while process.poll() is None and not select.select([sys.stdin], [], [], 0.2)[0]:
            pass
    finally:
        with contextlib.suppress(ProcessLookupError):  # no process is left
            os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
    code = process.wait()
    return code if code >= 0 else 128 - code  # a signal's number, as shells say it


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[2:], Path(sys.argv[1])))
