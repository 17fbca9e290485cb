"""What benchmarks of environments measure with: CPU seconds, memory, processes of their own."""

import gc
import multiprocessing
import time
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


def new_process() -> ProcessPoolExecutor:
    """Return a fresh process that shares nothing with this one."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
