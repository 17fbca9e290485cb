"""glibc memory settings for learners on CPUs."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from malloc.h


def keep_freed_memory() -> bool:
    """Keep freed memory in the process for the next allocations.

    Every pass frees gigabytes of activations, and the next pass allocates as much. By default,
    glibc returns the memory to the kernel, which then has to clear every page again. This takes up
    to a quarter of an update.

    Returns:
        Whether the C library has these settings.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # not glibc
        return False
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))
