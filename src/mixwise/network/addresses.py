"""Addresses of this machine, and stores that listen on one of them only."""

from __future__ import annotations

import socket
from datetime import timedelta
from ipaddress import ip_address

import psutil
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from mixwise.errors import ConfigError, NetworkError


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address; a name is not looked up."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def address_towards(host: str, port: int) -> str:
    """The address that this machine shows to `host`."""
    if is_loopback(host):
        return "127.0.0.1"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))  # of a datagram socket: chooses a route, sends nothing
        except OSError as error:
            raise NetworkError(f"no route to {host} ({error.strerror}); check the network, and --master") from None
        return str(probe.getsockname()[0])


def listening_store(host: str, port: int, timeout: float = 300.0) -> TCPStore:
    """Return a store that listens on the address of `host` only; by default, a TCPStore listens on all interfaces.

    Args:
        host: an address of this machine.
        port: 0 for any free port.
        timeout: seconds that a read waits for its key.
    """
    host, port, listening = _listening(host, port)
    wait = timedelta(seconds=timeout)
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, timeout=wait, master_listen_fd=listening.detach()
    )


def free_address(host: str, port: int) -> tuple[str, int]:
    """Return the address with a port that is free there, if it is 0; raise an error if one cannot listen on it."""
    host, port, listening = _listening(host, port)
    listening.close()
    return host, port


def _listening(host: str, port: int) -> tuple[str, int, socket.socket]:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if is_loopback(str(address[0])) and not is_loopback(host):
            raise ConfigError(f"--master {host}:{port}: that name means {address[0]} here; give the address itself")
        listening = socket.create_server(address, family=family, backlog=1024)
        return host, listening.getsockname()[1], listening
    except OSError as error:
        raise ConfigError(
            f"machine 0 cannot listen on {host}:{port} ({str(error.strerror).partition(' (while')[0]}); "
            f"give an address of machine 0 that the others reach, and a free port"
        ) from None


def gloo_interface(host: str, port: int) -> dict[str, str]:
    """The environment variable that makes gloo use the interface to machine 0, if known; on one machine, loopback.

    Gloo would look up its own host name, which often leads to another interface.
    """
    try:
        own = address_towards(host, port)
    except NetworkError:
        return {}
    for name, addresses in psutil.net_if_addrs().items():
        if own in {each.address for each in addresses}:
            return {"GLOO_SOCKET_IFNAME": name}
    return {}
