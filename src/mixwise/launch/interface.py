"""Which network interface leads to another machine: gloo would look its own host name up, often a wrong one."""

from __future__ import annotations

import socket
import struct
import sys


def gloo_interface(master: tuple[str, int] | None) -> dict[str, str]:
    """The environment variable by which gloo takes the interface that leads to machine 0; on one machine, loopback."""
    if master is None:
        return {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    name = interface_towards(*master)
    return {} if name is None else {"GLOO_SOCKET_IFNAME": name}


def interface_towards(host: str, port: int) -> str | None:
    """The name of the interface whose address this machine shows to `host`; None where that cannot be found out."""
    if sys.platform != "linux":
        return None
    import fcntl

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # of a datagram socket: chooses a route, sends nothing
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode())
                try:
                    answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
                except OSError:  # an interface without an address
                    continue
                if socket.inet_ntoa(answer[20:24]) == own:
                    return name
    except OSError:
        return None
    return None
