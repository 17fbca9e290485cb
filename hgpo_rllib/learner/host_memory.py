"""glibc memory settings for learners on CPUs."""

import ctypes
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from malloc.h


def keep_freed_memory() -> None:
    """Keep freed memory in the process for the next allocations.

    Every pass frees gigabytes of activations, and the next pass allocates as much. By default,
    glibc returns the memory to the kernel, which then has to clear every page again. This takes up
    to a quarter of an update. Other C libraries than glibc are left as they are.
    """
    with suppress(AttributeError):  # no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)
