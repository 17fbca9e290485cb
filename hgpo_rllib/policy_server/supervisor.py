"""Run vLLM's server for `hgpo serve` and clean up after it, whichever process is killed.

``python -m hgpo_rllib.policy_server.supervisor FOLDER COMMAND…`` exits with the command and deletes
FOLDER. It kills the command and all its processes when standard input ends: the kernel closes that
pipe when the process at the other end exits for any reason. On SIGTERM it sends `DRAIN_SIGNAL` to
the command, which lets running requests finish.

If the supervisor itself is killed, `die_with_parent` ends the command.
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

DRAIN_SIGNAL = signal.SIGUSR1
"""Signal to drain the server. vLLM's handlers of SIGINT and SIGTERM keep accepting requests."""


def supervise(command: list[str], folder: Path) -> int:
    """Run the command until it exits or standard input ends, and return its exit code."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )

    def drain(number: int, frame: FrameType | None) -> None:
        process.send_signal(DRAIN_SIGNAL)

    signal.signal(signal.SIGTERM, drain)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    try:
        while process.poll() is None and not select.select([sys.stdin], [], [], 0.2)[0]:
            pass
    finally:
        with contextlib.suppress(ProcessLookupError):  # no process is left
            os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
    code = process.wait()
    return code if code >= 0 else 128 - code  # killed by a signal: 128 + its number, as in shells


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[2:], Path(sys.argv[1])))
