"""Measure CPU time and memory, and start separate processes, for benchmarks."""

import gc
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import psutil

from env_wrappers.processes import process_pool

T = TypeVar("T")
Row = dict[str, Any]
"""Results by name; names end in the unit."""
Tables = dict[str, list[Row]]
"""Tables of a benchmark by the names that `hgpo bench` prints."""


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(psutil.Process().memory_info().rss)


def timed(function: Callable[[], T], clean: bool = True) -> tuple[float, T]:
    """Return the CPU seconds of a call and its result.

    Earlier garbage is collected before the call unless ``clean`` is False.
    """
    if clean:
        gc.collect()
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def peak_mib(function: Callable[[], object]) -> float:
    """Return the peak memory in MiB that a call allocated in Python and NumPy.

    Use it in single-threaded processes only: CPython before 3.14 can crash if `tracemalloc` stops
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


def new_process() -> AbstractContextManager[ProcessPoolExecutor]:
    """Start a new process that shares no state with this one and ends with it."""
    return process_pool(1)
