"""Ray and Serve for one command: started on the loopback address, and always stopped."""

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import ray
from ray import serve
from ray._private import ray_constants

from hgpo_rllib.config import ConfigError, RunConfig
from hgpo_rllib.run.demand import Supply, place, replica_demand
from hgpo_rllib.run.estimate import resources

LOOPBACK = "127.0.0.1"
NOISY_LOGGERS = ("ray", "ray.serve", "ray.rllib", "ray.tune", "ray._common.deprecation", "vllm")


@contextmanager
def ray_cluster(config: RunConfig) -> Iterator[None]:
    """Connect to the cluster of RAY_ADDRESS, or start a local one and stop it in the end.

    Raises:
        ConfigError: the dashboard port is taken, RAY_ADDRESS is none of a node, or the cluster is
            too small for the config.
    """
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    port = config.cluster.dashboard_port
    if "RAY_ADDRESS" in os.environ:
        check_address(os.environ["RAY_ADDRESS"])
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


def check_address(address: str) -> None:
    """Raise ConfigError for an address that reaches a cluster from outside of it.

    The main process has to be on a node: replicas take the weights from there.
    """
    if "://" in address:
        raise ConfigError(
            f"RAY_ADDRESS={address} is an address for clients: run on a node of the cluster with "
            "RAY_ADDRESS=auto, or submit the command with `ray job submit`"
        )


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
    here = ray.get_runtime_context().get_node_id()
    nodes = sorted(ray.nodes(), key=lambda node: node["NodeID"] != here)
    check_supply(config, [node["Resources"] for node in nodes if node["Alive"]])


def check_supply(config: RunConfig, nodes: Sequence[Supply]) -> None:
    """Raise ConfigError unless the nodes hold the learner and all replicas.

    Args:
        config: the settings.
        nodes: what each node has; first the node of this process.
    """
    free = [dict(node) for node in nodes]
    _place_learners(config, free)
    count, replica = config.policy_server.num_replicas, replica_demand(config)
    held = sum(place(replica, free) for _ in range(count))
    if held < count:
        each = " and ".join(f"{amount:g} {name}" for name, amount in replica.items() if amount)
        raise ConfigError(
            f"policy_server.num_replicas={count}, of {each} each, and the cluster holds {held}; "
            "lower policy_server.* settings, or start more nodes (docs/cluster.md)"
        )


def _place_learners(config: RunConfig, free: list[dict[str, float]]) -> None:
    *_, learner, _ = resources(config)
    if all(place({"CPU": learner.cpus, "GPU": learner.gpus}, free) for _ in range(learner.count)):
        return
    if config.cluster.num_learners == 0:
        raise ConfigError(
            f"the learner needs {learner.gpus:g} GPU and no node of the cluster has that; "
            "lower cluster.learner_gpus, or start a node with a GPU"
        )
    each = f"{learner.cpus:g} CPU" if learner.cpus else f"{learner.gpus:g} GPU"
    raise ConfigError(
        f"cluster.num_learners={learner.count}, of {each} each, and the cluster holds fewer; "
        "lower it or cluster.learner_gpus, or start more nodes (docs/cluster.md)"
    )
