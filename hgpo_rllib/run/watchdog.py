"""Ends a command whose Ray has died, with one line instead of Ray's many."""

import contextlib
import os
import select
import threading
from collections.abc import Callable, Iterator, Mapping

import psutil
import ray


@contextlib.contextmanager
def exit_when_ray_ends(remedy: Callable[[], str]) -> Iterator[None]:
    """Exit with code 1 and one line on standard error when this node's Ray ends in the block.

    Ray does not come back by itself. Its client code would print dozens of lines, wait for a minute
    or ignore Ctrl-C, and then abort the process.

    Args:
        remedy: how to go on, as the end of a sentence; called at that moment.
    """
    with on_exit_of(ray_processes(), lambda name: _exit(name, remedy())):
        yield


def ray_processes() -> dict[int, str]:
    """What this command cannot do without, as names by process id.

    These are this node's raylet, and the GCS where the command itself started it: that of a cluster
    may be restarted.
    """
    here = ray.get_runtime_context().get_node_id()
    (socket,) = (node["RayletSocketName"] for node in ray.nodes() if node["NodeID"] == here)
    found = {}
    for process in psutil.process_iter(["name", "cmdline"]):
        arguments = process.info["cmdline"] or ()
        if process.info["name"] == "raylet" and any(socket in part for part in arguments):
            found[process.pid] = "raylet"
    for child in psutil.Process().children():
        if child.name() == "gcs_server":
            found[child.pid] = "GCS"
    return found


@contextlib.contextmanager
def on_exit_of(processes: Mapping[int, str], call: Callable[[str], None]) -> Iterator[None]:
    """Call `call` with the name of the first process that ends in the block, in a thread."""
    with contextlib.ExitStack() as stack:
        left, leave = os.pipe()
        stack.callback(os.close, left)
        watched = {os.pidfd_open(process): name for process, name in processes.items()}
        for descriptor in watched:
            stack.callback(os.close, descriptor)
        poll = select.poll()
        for descriptor in (left, *watched):
            poll.register(descriptor, select.POLLIN)

        def watch() -> None:
            descriptor = poll.poll()[0][0]
            if descriptor in watched:
                call(watched[descriptor])

        thread = threading.Thread(target=watch, name="ray-watchdog", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(os.close, leave)  # wakes the thread
        yield


def _exit(name: str, remedy: str) -> None:
    os.write(2, f"hgpo: Ray's {name} process has ended; {remedy}\n".encode())
    os._exit(1)  # threads of Ray would neither let Python finish nor say anything useful
