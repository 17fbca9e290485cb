"""What benchmarks of environments measure with: CPU seconds, memory, processes of their own."""

import gc
import multiprocessing
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

import psutil

Result = TypeVar("Result")


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    return int(psutil.Process().memory_info().rss)


def timed(function: Callable[[], Result]) -> tuple[float, Result]:
    """Return the CPU seconds that a call took, and its result."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def timed_clean(function: Callable[[], Result]) -> tuple[float, Result]:
    """The same, when what was dropped before, which is not this call's, has been cleared away."""
    gc.collect()
    return timed(function)


def peak_mib(function: Callable[[], object]) -> float:
    """Most memory that Python and NumPy held during a call beyond what was there before, MiB.

    Only for a process with one thread: CPython before 3.14 can crash where `tracemalloc` stops
    while another thread allocates (gh-128679).
    """
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        function()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (peak - before) / 2**20


def new_process() -> ProcessPoolExecutor:
    """Return a fresh process that shares nothing with this one."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
