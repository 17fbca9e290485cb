"""Start Ray and Serve for one command on the loopback address, and always stop them."""

import errno
import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import NoReturn

import psutil
import ray
from ray import serve
from ray._private import ray_constants
from ray.exceptions import ActorAlreadyExistsError

from env_wrappers.errors import one_line
from hgpo_rllib.config import RunConfig
from hgpo_rllib.errors import ConfigError, RunStoppedError
from hgpo_rllib.placement import check_run
from hgpo_rllib.run.inputs import LOOPBACK, check_dashboard_port
from hgpo_rllib.run.interrupt import sigterm_as_interrupt
from hgpo_rllib.run.session import ray_session

NOISY_LOGGERS = ("ray", "ray.serve", "ray.rllib", "ray.tune", "ray._common.deprecation", "vllm")


@contextmanager
def ray_cluster(
    config: RunConfig, run: Path | None = None, remedy: Callable[[], str] | None = None
) -> Iterator[None]:
    """Connect to the cluster at RAY_ADDRESS, or start a local one and stop it after the block.

    SIGTERM interrupts the block like Ctrl-C.

    Args:
        config: the settings.
        run: the run directory, if any; see `ray_session`.
        remedy: returns how to continue, as the end of a sentence. With it, the command exits with
            code 1 and one line if this node's Ray dies. Ray does not restart by itself: its client
            code would print dozens of lines, wait for a minute or ignore Ctrl-C, and then abort the
            process.

    Raises:
        ConfigError: the dashboard port is in use, RAY_ADDRESS is a client address or no cluster can
            be reached there, or the cluster is too small for the config.
        RunStoppedError: Ray did not start.
    """
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    # This logger prints tracebacks of errors that are also raised to the caller.
    logging.getLogger("ray.rllib.utils.actor_manager").setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        stack.enter_context(sigterm_as_interrupt())
        handler = signal.getsignal(signal.SIGTERM)
        try:
            if address := os.environ.get("RAY_ADDRESS"):
                _join_ray(address)
                stack.callback(ray.shutdown)
            else:
                check_dashboard_port(config)
                folder = stack.enter_context(ray_session(run))
                # Stops all processes, Serve included, also if Ray's start is interrupted.
                stack.callback(ray.shutdown)
                _start_ray(config.cluster.dashboard_port, folder)
        except SystemExit as error:  # Ray's own handlers of SIGTERM exit, with code 15 or 1
            raise KeyboardInterrupt from error
        signal.signal(signal.SIGTERM, handler)
        check_run(config.cluster, config.policy_server, alive_nodes())
        # Start Serve before any trial or algorithm: its controller does not fit into a placement
        # group.
        start_serve()
        if remedy is not None:
            stack.enter_context(on_exit_of(ray_processes(), partial(_exit, remedy)))
        yield


def start_serve() -> None:
    """Start Serve on the cluster, or connect to it if it runs."""
    start = partial(serve.start, proxy_location="Disabled", logging_config={"log_level": "ERROR"})
    try:
        start()
    except ActorAlreadyExistsError:
        # Another command on the cluster started it since `serve.start` looked for it.
        start()


def _join_ray(address: str) -> None:
    check_address(address)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise ConfigError(
            f"no Ray cluster can be reached at RAY_ADDRESS={address}: start one with `ray start`, "
            "use the same RAY_AUTH_MODE and token, or unset RAY_ADDRESS (docs/cluster.md)"
        ) from error
    except RuntimeError as error:  # another version of Ray or Python
        raise ConfigError(f"RAY_ADDRESS={address}: {one_line(error)}") from error


def _start_ray(dashboard_port: int | None, folder: Path) -> None:
    protect_token()
    try:
        with node_stays_on_loopback():
            ray.init(
                address="local",
                include_dashboard=dashboard_port is not None,
                dashboard_host=LOOPBACK,
                dashboard_port=dashboard_port,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address=LOOPBACK,
                _temp_dir=str(folder),
            )
    except Exception as error:
        short = ": set RAY_TMPDIR to a folder with a shorter path" * ("AF_UNIX" in str(error))
        raise RunStoppedError(f"Ray did not start: {one_line(error)}{short}") from error


def protect_token() -> None:
    """Make Ray's token readable by this user only; Ray itself creates a world-readable file.

    With the token, another user of the machine could run code in this Ray cluster.
    """
    path = Path.home() / ".ray" / "auth_token"
    if path.exists():
        if path.stat().st_mode & 0o077:  # otherwise it may be on a read-only file system
            path.chmod(0o600)
    elif not os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileExistsError):  # created by a concurrent command
            path.touch(mode=0o600, exist_ok=False)
            path.write_text(secrets.token_hex(32))


@contextmanager
def node_stays_on_loopback() -> Iterator[None]:
    """Let a node that starts in the block use the loopback address.

    Ray replaces that address by the machine's own and listens on all interfaces, unless it is told
    that no other node will join ($RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER, read at import). This matters
    because the metrics port, unlike Ray's other ports, requires no token.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def check_address(address: str) -> None:
    """Raise ConfigError for a client address, which connects from outside the cluster.

    The main process must run on a node, because replicas fetch the weights from there.
    """
    if "://" in address:
        raise ConfigError(
            f"RAY_ADDRESS={address} is an address for clients: run on a node of the cluster with "
            "RAY_ADDRESS=auto, or submit the command with `ray job submit`"
        )


def alive_nodes() -> list[dict[str, float]]:
    """Return the total resources of each live node of the connected cluster."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def ray_processes() -> dict[int, str]:
    """Return the names, by process id, of the Ray processes that this command depends on.

    These are this node's raylet, and the GCS if this command started it. The GCS of an existing
    cluster may be restarted.
    """
    here = ray.get_runtime_context().get_node_id()
    (socket,) = (node["RayletSocketName"] for node in ray.nodes() if node["NodeID"] == here)
    found = {}
    for process in psutil.process_iter(["name", "cmdline", "ppid"]):
        info = process.info
        # Compare the whole name: that of a second node of this machine begins with the first one's.
        values = {part.partition("=")[2] for part in info["cmdline"] or ()}
        if info["name"] == "raylet" and socket in values:
            found[process.pid] = "raylet"
        elif info["name"] == "gcs_server" and info["ppid"] == os.getpid():
            found[process.pid] = "GCS"
    return found


@contextmanager
def on_exit_of(processes: Mapping[int, str], call: Callable[[str], None]) -> Iterator[None]:
    """Call `call`, in a thread, with the name of the first process that exits in the block."""
    try:
        watched = {os.pidfd_open(process): name for process, name in processes.items()}
    except OSError as error:
        if error.errno != errno.ENOSYS:  # Linux before 5.3
            raise
        yield
        return
    leave = os.eventfd(0)

    def watch() -> None:
        descriptor, *_ = wait([leave, *watched])
        if descriptor in watched:
            call(watched[descriptor])

    thread = threading.Thread(target=watch, name="ray-processes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.eventfd_write(leave, 1)  # wakes the thread
        thread.join()
        for descriptor in (leave, *watched):
            os.close(descriptor)


def _exit(remedy: Callable[[], str], name: str) -> NoReturn:
    os.write(2, f"hgpo: Ray's {name} process has ended; {remedy()}\n".encode())
    os._exit(1)  # Ray's threads would block a normal exit
