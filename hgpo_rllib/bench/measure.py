"""What benchmarks measure with: CPU seconds, memory, processes of their own."""

import gc
import multiprocessing
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

import psutil

Result = TypeVar("Result")
Row = dict[str, Any]
"""Numbers by name; a name ends in its unit."""
Tables = dict[str, list[Row]]
"""What a benchmark found, by the names that `hgpo bench` prints."""


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    return int(psutil.Process().memory_info().rss)


def timed(function: Callable[[], Result], clean: bool = True) -> tuple[float, Result]:
    """Return the CPU seconds that a call took, and its result.

    What was dropped before, which is not this call's, is cleared away unless ``clean`` is False.
    """
    if clean:
        gc.collect()
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


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
