"""Memory settings of glibc and oneDNN for learners on CPUs."""

import ctypes
import os
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from malloc.h
CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Environment variables with the sizes of the caches of oneDNN and of torch."""
CACHED_PRIMITIVES = 32
"""Number of oneDNN primitives that stay in memory: a pass through a Llama and back has 22. With
fewer, each layer would create them again."""


def set_up_host_memory() -> None:
    """Keep freed memory in the process, and limit the caches of oneDNN. Call before any pass.

    Every pass frees gigabytes of activations, and the next pass allocates as much. By default,
    glibc returns the memory to the kernel, which then has to clear every page again. This takes up
    to a quarter of an update. Other C libraries than glibc are left as they are.

    With bfloat16, torch computes matrix products on CPUs with oneDNN. Each shape has a primitive
    with its own scratch memory. By default, oneDNN and torch each cache 1,024 of them. Most passes
    have new shapes, so memory would grow by gigabytes within an update. Both libraries read these
    variables at the first product; values that the user has set stay.
    """
    with suppress(AttributeError):  # no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)
    for name in CACHES:
        os.environ.setdefault(name, str(CACHED_PRIMITIVES))
