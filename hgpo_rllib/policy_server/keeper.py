"""Runs a command in a session of its own, and leaves nothing of it behind, whatever happens.

``python -m hgpo_rllib.policy_server.keeper COMMAND…`` ends with the command, and ends it, with all
its descendants, when standard input ends. Whoever holds the other side of that pipe cannot forget
to: the system closes it for a process that was killed, too.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys

GRACE_S = 10
"""Seconds that the command has to end by itself. While vLLM loads a model it does not."""


def keep(command: list[str]) -> int:
    """Run the command to its end, or that of standard input; its exit code."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # the pipe says when; not for the command
        signal.signal(number, signal.SIG_IGN)
    try:
        while process.poll() is None and not select.select([sys.stdin], [], [], 0.2)[0]:
            pass
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):  # nobody is left
            os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    return code if code >= 0 else 128 - code  # a signal's number, as shells say it


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
