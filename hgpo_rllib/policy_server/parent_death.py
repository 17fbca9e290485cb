"""Kill a process when its parent exits for any reason."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_libc = ctypes.CDLL(None, use_errno=True)  # loaded here, as a `preexec_fn` must not


def die_with_parent(parent: int | None = None) -> None:
    """Make Linux kill this process (SIGKILL) as soon as its parent exits.

    The setting survives exec. Children do not inherit it, so each of them has to call this.

    Linux watches the *thread* that started this process. If that thread exits before the parent
    process, this process is killed too early. Start it from the parent's main thread.

    Args:
        parent: process id of the parent, if known: `os.getpid()` before a fork, or
            `multiprocessing.parent_process().pid`. Linux sends no signal for a parent that exited
            before this call; this function then kills the process at once.
    """
    parent = parent or os.getppid()
    if _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
