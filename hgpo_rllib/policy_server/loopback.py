"""Keeps the port of a replica on the loopback address."""

import ray
from ray._common import tls_utils
from ray.serve._private import replica

LOOPBACK = "127.0.0.1"


def keep_grpc_on_loopback() -> None:
    """Where the node has the loopback address, let this replica's gRPC port have it, too.

    Serve opens that port on all interfaces after the constructor of a deployment, and has no
    setting for the address. Called in the constructor, this replaces the function that opens it.
    Clients of the port use the node's address.
    """
    if ray.util.get_node_ip_address() == LOOPBACK:
        replica.add_port_to_grpc_server = _on_loopback


def _on_loopback(server: object, address: str) -> int:
    return tls_utils.add_port_to_grpc_server(server, f"{LOOPBACK}:0")
