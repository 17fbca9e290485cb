"""Ray and Serve for one command: started on the loopback address, and always stopped."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray import serve
from ray._private import ray_constants

from hgpo_rllib.config import ConfigError, RunConfig

LOOPBACK = "127.0.0.1"
NOISY_LOGGERS = ("ray", "ray.serve", "ray.rllib", "ray.tune", "ray._common.deprecation", "vllm")


@contextmanager
def ray_cluster(config: RunConfig) -> Iterator[None]:
    """Connect to the cluster of RAY_ADDRESS, or start a local one and stop it in the end.

    Raises:
        ConfigError: the dashboard port is taken, or the cluster is too small for the config.
    """
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    port = config.cluster.dashboard_port
    if "RAY_ADDRESS" in os.environ:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    else:
        if port is not None:
            check_port_is_free(port)
        with node_stays_on_loopback():
            ray.init(
                address="local",
                include_dashboard=port is not None,
                dashboard_host=LOOPBACK,
                dashboard_port=port,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address=LOOPBACK,
            )
    try:
        check_resources(config)
        # Before any trial or algorithm: Serve's controller does not fit into a placement group.
        serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
        yield
    finally:
        ray.shutdown()  # of a local cluster this ends Serve and every other process


@contextmanager
def node_stays_on_loopback() -> Iterator[None]:
    """Let a node that starts now have the loopback address.

    Ray takes the machine's own address in its place, and listens on all interfaces with it, unless
    it is told that no other node will join ($RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER, read at import).
    Other ports ask for a token, the one that shows metrics does not.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def check_port_is_free(port: int) -> None:
    """Raise ConfigError when something listens on that loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise ConfigError(
                f"cluster.dashboard_port: port {port} is in use; choose another, or null for none"
            ) from error


def check_resources(config: RunConfig) -> None:
    """Raise ConfigError when the cluster cannot hold the actors: Ray would wait forever."""
    server = config.policy_server
    wanted = {
        "CPU": server.num_replicas * server.replica_cpus,
        "GPU": server.num_replicas * server.replica_gpus + config.cluster.learner_gpus,
    }
    supply = ray.cluster_resources()
    for resource, amount in wanted.items():
        if amount > supply.get(resource, 0):
            raise ConfigError(
                f"the run needs {amount:g} {resource}s and the cluster has "
                f"{supply.get(resource, 0):g}; lower policy_server.* or cluster.* settings"
            )
