"""The addresses on which a process and all its descendants accept TCP connections, read from Linux's /proc."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

_LISTEN = "0A"  # the state, as /proc/net/tcp writes it


def descendants(pid: int) -> list[int]:
    """The process and all that it has started, directly or not."""
    found = [pid]
    for parent in found:
        with suppress(OSError):  # it has just ended
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def listening(pid: int) -> dict[tuple[str, int], int]:
    """Address and port of every listening socket, and the process that holds it."""
    found: dict[tuple[str, int], int] = {}
    for process in descendants(pid):
        with suppress(OSError):
            held = _sockets(process)
            for table in ("tcp", "tcp6"):
                for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
                    words = line.split()
                    if words[3] == _LISTEN and words[9] in held:
                        found[_endpoint(words[1])] = process
    return found


def _sockets(pid: int) -> set[str]:
    """The inodes of the sockets that a process holds."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            target = os.readlink(descriptor)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def _endpoint(text: str) -> tuple[str, int]:
    """0100007F:1F90 is 127.0.0.1, port 8080: words of 32 bits in the machine's order."""
    address, port = text.split(":")
    data = b"".join(struct.pack("=I", int(address[i : i + 8], 16)) for i in range(0, len(address), 8))
    if len(data) == 4:
        return str(IPv4Address(data)), int(port, 16)
    whole = IPv6Address(data)
    return str(whole.ipv4_mapped or whole), int(port, 16)
