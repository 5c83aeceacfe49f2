"""The network interface that leads to another machine: gloo would look up its own host name, often a wrong one."""

from __future__ import annotations

import socket
import struct
import sys
from contextlib import suppress

from mixwise.errors import NetworkError
from mixwise.network.board import LOOPBACK, address_towards, is_loopback


def gloo_interface(endpoint: tuple[str, int]) -> dict[str, str]:
    """The environment variable that makes gloo use the interface to machine 0; on one machine, loopback."""
    name = LOOPBACK if is_loopback(endpoint[0]) else interface_towards(*endpoint)
    return {} if name is None else {"GLOO_SOCKET_IFNAME": name}


def interface_towards(host: str, port: int) -> str | None:
    """The name of the interface whose address this machine shows to `host`; None where that is not known."""
    if sys.platform != "linux":
        return None
    import fcntl

    with suppress(NetworkError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        own = address_towards(host, port)
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR
                if socket.inet_ntoa(answer[20:24]) == own:
                    return name
    return None
