"""The network interface that leads to another machine: gloo would look up its own host name, often a wrong one."""

from __future__ import annotations

import psutil

from mixwise.errors import NetworkError
from mixwise.network.board import LOOPBACK, address_towards, is_loopback


def gloo_interface(endpoint: tuple[str, int]) -> dict[str, str]:
    """The environment variable that makes gloo use the interface to machine 0; on one machine, loopback."""
    name = LOOPBACK if is_loopback(endpoint[0]) else interface_towards(*endpoint)
    return {} if name is None else {"GLOO_SOCKET_IFNAME": name}


def interface_towards(host: str, port: int) -> str | None:
    """The name of the interface whose address this machine shows to `host`; None where that is not known."""
    try:
        own = address_towards(host, port)
    except NetworkError:
        return None
    found = (name for name, addresses in psutil.net_if_addrs().items() if own in {each.address for each in addresses})
    return next(found, None)
