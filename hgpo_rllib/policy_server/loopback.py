"""Bind the gRPC port of a replica to the loopback address."""

import ray
from ray._common import tls_utils
from ray.serve._private import replica

LOOPBACK = "127.0.0.1"


def keep_grpc_on_loopback() -> None:
    """Bind this replica's gRPC port to the loopback address if the node uses that address.

    Serve opens the port on all interfaces after the constructor of a deployment, and has no setting
    for the address. Call this in the constructor to replace the function that opens the port.
    Clients connect to the node's address.
    """
    if ray.util.get_node_ip_address() == LOOPBACK:
        replica.add_port_to_grpc_server = _on_loopback


def _on_loopback(server: object, address: str) -> int:
    return tls_utils.add_port_to_grpc_server(server, f"{LOOPBACK}:0")
