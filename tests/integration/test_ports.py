"""A command that starts its own Ray is reachable from this machine only."""

import contextlib
import ipaddress

import psutil
import pytest

from hgpo_rllib.algorithm import HGPO

pytestmark = pytest.mark.integration


def test_all_ports_are_on_loopback(algorithm: HGPO) -> None:
    """Ray, Serve and vLLM listen on the loopback address only, as docs/cluster.md states."""
    listening = listeners()
    assert {"raylet", "gcs_server"} <= set(listening.values())
    assert any("ServeRepl" in name for name in listening.values())
    assert any("VLLM" in name for name in listening.values())
    assert all(map(is_loopback, listening)), listening


def listeners() -> dict[tuple[str, int], str]:
    """Return the addresses on which child processes listen, with the processes' names."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        # Ray can end idle workers at any time.
        with contextlib.suppress(psutil.NoSuchProcess):
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found[connection.laddr] = process.name()
    return found


def is_loopback(address: tuple[str, int]) -> bool:
    """Return whether this is a loopback address, also in IPv6 notation (::ffff:127.0.0.1)."""
    parsed = ipaddress.ip_address(address[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback
