"""Exit with a one-line message when the Ray processes of a command die."""

import contextlib
import os
import select
import threading
from collections.abc import Callable, Iterator, Mapping

import psutil
import ray


@contextlib.contextmanager
def exit_when_ray_ends(remedy: Callable[[], str]) -> Iterator[None]:
    """Exit with code 1 and one line on standard error if this node's Ray dies in the block.

    Ray does not restart by itself. Its client code would print dozens of lines, wait for a minute
    or ignore Ctrl-C, and then abort the process.

    Args:
        remedy: returns how to continue, as the end of a sentence; called when Ray dies.
    """
    with on_exit_of(ray_processes(), lambda name: _exit(name, remedy())):
        yield


def ray_processes() -> dict[int, str]:
    """Return the names, by process id, of the Ray processes that this command depends on.

    These are this node's raylet, and the GCS if this command started it. The GCS of an existing
    cluster may be restarted.
    """
    here = ray.get_runtime_context().get_node_id()
    (socket,) = (node["RayletSocketName"] for node in ray.nodes() if node["NodeID"] == here)
    found = {}
    for process in psutil.process_iter(["name", "cmdline"]):
        # Compare the whole name: that of a second node of this machine begins with the first one's.
        values = {part.partition("=")[2] for part in process.info["cmdline"] or ()}
        if process.info["name"] == "raylet" and socket in values:
            found[process.pid] = "raylet"
    for child in psutil.Process().children():
        if child.name() == "gcs_server":
            found[child.pid] = "GCS"
    return found


@contextlib.contextmanager
def on_exit_of(processes: Mapping[int, str], call: Callable[[str], None]) -> Iterator[None]:
    """Call `call`, in a thread, with the name of the first process that exits in the block."""
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
    os._exit(1)  # Ray's threads would block a normal exit
