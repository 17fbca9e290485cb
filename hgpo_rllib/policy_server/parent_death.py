"""Lets a process end with its parent, whatever ended that one."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_libc = ctypes.CDLL(None, use_errno=True)  # here: a `preexec_fn` must not load libraries


def die_with_parent(parent: int | None = None) -> None:
    """Have Linux kill this process (SIGKILL) as soon as its parent has ended.

    The setting survives exec. Children do not inherit it: each of them has to call this, too.

    Linux watches the *thread* that started this process. A process that was started by a thread
    that ends before its process does is killed too early: start it from the main thread.

    Args:
        parent: process id of the parent, where it is known: `os.getpid()` before a fork, or
            `multiprocessing.parent_process().pid`. A parent that has ended before this call sends
            no signal; this process is then killed at once.
    """
    parent = parent or os.getppid()
    if _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
