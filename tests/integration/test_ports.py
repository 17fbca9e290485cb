"""A command that starts its own Ray can be reached from this machine alone."""

import contextlib
import ipaddress

import psutil
import pytest

from hgpo_rllib.algorithm import HGPO

pytestmark = pytest.mark.integration


def test_all_ports_are_on_loopback(algorithm: HGPO) -> None:
    """Of Ray, Serve with its replica, and vLLM; docs/cluster.md says so."""
    listening = listeners()
    assert {"raylet", "gcs_server"} <= set(listening.values())
    assert any("ServeRepl" in name for name in listening.values())
    assert any("VLLM" in name for name in listening.values())
    assert all(map(is_loopback, listening)), listening


def listeners() -> dict[tuple[str, int], str]:
    """Addresses at which processes of this one listen, with the names of the processes."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        # Ray ends idle workers at any time.
        with contextlib.suppress(psutil.NoSuchProcess):
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found[connection.laddr] = process.name()
    return found


def is_loopback(address: tuple[str, int]) -> bool:
    """Also as IPv6 writes it, ::ffff:127.0.0.1."""
    parsed = ipaddress.ip_address(address[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback
