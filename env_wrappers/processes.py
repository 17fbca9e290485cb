"""Process pools that never outlive their parent process."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_ITEMS_PER_WORKER = 8  # with fewer, starting a process takes longer


@contextmanager
def _deferred(number: int) -> Iterator[None]:
    """Handle this signal after the block. Only the main thread can; in others, do nothing."""
    handler = signal.getsignal(number)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    received: list[int] = []
    signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(number, handler)
        if received:
            signal.raise_signal(number)


class _Pool(ProcessPoolExecutor):
    """Pool whose `submit` is not interrupted.

    `submit` can start a process, which waits for its parent to write what it is to run. If the
    parent is interrupted before that, the new process prints a traceback, and nothing terminates
    it. `submit` also acquires locks in Python code (`Condition.__enter__`). If it is interrupted
    between this and the block that releases them, the pool's thread waits forever for the lock,
    and Python waits for that thread before it exits.
    """

    def submit(self, work: Callable[..., _Result], /, *args: Any, **kwargs: Any) -> Future[_Result]:
        """Submit ``work(*args, **kwargs)``."""
        with _deferred(signal.SIGINT), _deferred(signal.SIGTERM):
            return super().submit(work, *args, **kwargs)


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of spawned processes; terminate them if the block raises.

    By default, `ProcessPoolExecutor` waits for running work, and its processes survive if the
    parent is killed.
    """
    others = multiprocessing.active_children()
    spawn = multiprocessing.get_context("spawn")
    with _Pool(workers, spawn, _prepare_worker) as pool:
        try:
            yield pool
        except BaseException:
            # In this order: Python 3.11 prints a traceback if a pool breaks with cancelled work.
            pool.shutdown(wait=False, cancel_futures=True)
            processes = [p for p in multiprocessing.active_children() if p not in others]
            for process in processes:
                process.terminate()
            for process in processes:
                process.join()
            raise


def _prepare_worker() -> None:
    """Ignore Ctrl-C, which the parent handles, and exit when the parent exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "workers have one"
    parent.join()
    os._exit(1)


def map_in_processes(
    work: Callable[[_Item], _Result], items: Sequence[_Item], workers: int | None = None
) -> Iterator[_Result]:
    """Yield ``work(item)`` in the order of the items; `work` must be picklable.

    With one worker, this process does the work; None: one process per `_ITEMS_PER_WORKER` items,
    at most one per CPU that this process may use (in a container, of its quota).
    """
    if workers is None:
        import joblib  # takes a moment

        workers = min(joblib.cpu_count(), len(items) // _ITEMS_PER_WORKER)
    if workers <= 1:
        yield from map(work, items)
        return
    with process_pool(workers) as pool:
        # Not `pool.map`, which cancels its futures when it is interrupted: Python 3.11 prints a
        # traceback if it then marks these futures as failed because their process has ended.
        futures = deque(pool.submit(work, item) for item in items)
        while futures:
            yield futures.popleft().result()
