"""Which network interface leads to another machine: gloo would look its own host name up, often a wrong one."""

from __future__ import annotations

import socket
import struct
import sys


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
