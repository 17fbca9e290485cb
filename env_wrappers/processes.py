"""Processes for work on many tasks, which never outlive the one that started them."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of new processes (spawn); an exception in the block ends them at once.

    Without this, `ProcessPoolExecutor` waits for what they are doing, and its processes stay
    forever if this one is killed.
    """
    context = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare_worker) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                if process not in others:
                    process.terminate()
            raise


def _prepare_worker() -> None:
    """Leave Ctrl-C, which all processes of a terminal get, to the parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "workers have one"
    parent.join()
    os._exit(1)
