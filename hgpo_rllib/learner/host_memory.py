"""Host memory between passes: glibc's settings for a process that learns on CPUs."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


def keep_freed_memory() -> bool:
    """Have this process keep what its tensors free, for those that come next.

    Every pass frees gigabytes of activations, and the next one takes as much. In between, glibc
    would give them back to the kernel, which then has to clear each page anew: up to a quarter of
    an update.

    Returns:
        Whether the C library has these settings.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # not glibc
        return False
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))
