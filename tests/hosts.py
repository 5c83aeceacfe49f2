"""Simulated hosts: network namespaces with an address each, joined by a switch.

    with Hosts(2) as hosts:
        hosts.run(0, f"ping -c1 {hosts.address(1)}")
        Program(command, env=os.environ | hosts.variables(0))

Needs no privileges where the kernel lets users make namespaces; `why_not()` tells what is missing.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys

TOOLS = ("unshare", "nsenter", "ip", "tc")


class HostsError(RuntimeError):
    """A command that failed."""


@functools.cache
def why_not() -> str | None:
    """Why there can be no hosts here; None if there can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    try:
        with Hosts(2):
            return None
    except HostsError as error:
        return f"this kernel, or its settings, lets us make no network namespaces: {error}"


class Hosts:
    """Namespaces that last as long as the block."""

    def __init__(self, count: int) -> None:
        self._keepers: list[subprocess.Popen[bytes]] = []  # a namespace lives as long as a process in it
        self.count = count

    def __enter__(self) -> Hosts:
        try:
            self._keep(["unshare", "--map-root-user", "--net"])
            self.run(None, "ip link add switch type bridge")
            self.run(None, "ip link set switch up")
            for host in range(self.count):
                self._keep(self.command(None, "unshare", "--net"))
                pid = self._keepers[-1].pid
                self.run(None, f"ip link add port{host} type veth peer name eth0 netns {pid}")
                self.run(None, f"ip link set port{host} master switch up")
                self.run(host, f"ip address add {self.address(host)}/24 dev eth0")
                self.run(host, "ip link set eth0 up")
                self.run(host, "ip link set lo up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for keeper in reversed(self._keepers):
            keeper.kill()
            keeper.communicate()

    def address(self, host: int) -> str:
        """The address of a host."""
        return f"10.77.0.{host + 1}"

    def variables(self, host: int) -> dict[str, str]:
        """Environment variables with which a `Program` runs on a host."""
        return {"NETWORK_OF": str(self._keepers[host + 1].pid)}

    def connect(self, one: int, other: int, device: str) -> None:
        """A cable between two hosts, beside the switch; what they send to each other takes it from now on."""
        self.run(one, f"ip link add {device} type veth peer name {device} netns {self._keepers[other + 1].pid}")
        for host, peer in ((one, other), (other, one)):
            self.run(host, f"ip link set {device} up")
            self.run(host, f"ip route add {self.address(peer)}/32 dev {device} src {self.address(host)}")

    def unplug(self, host: int) -> None:
        """Pull the cable of a host."""
        self.run(None, f"ip link set port{host} down")

    def command(self, host: int | None, *words: str) -> list[str]:
        """The command line that runs these words on a host; on the switch if there is none."""
        pid = self._keepers[0 if host is None else host + 1].pid
        return ["nsenter", f"--target={pid}", "--user", "--preserve-credentials", "--net", *words]

    def run(self, host: int | None, command: str) -> str:
        """What a command prints on a host."""
        done = subprocess.run(self.command(host, *command.split()), capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise HostsError(f"{command}: {done.stderr.strip()}")
        return done.stdout

    def _keep(self, before: list[str]) -> None:
        """A process in a namespace of its own that says when it is there; it ends with us, whatever happens."""
        keeper = subprocess.Popen(
            [*before, "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._keepers.append(keeper)
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        if not keeper.stdout.readline():
            raise HostsError(keeper.stderr.read().decode().strip())
