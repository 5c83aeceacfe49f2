"""Four hosts, network namespaces of this machine, one slow cable among fast ones: ring gossip against DDP.

The ring all-reduce of DDP sends 1.5 rows over the slow cable in each step, all in one direction; gossip sends one row
in each direction, at the same time.
"""

from __future__ import annotations

from typing import Any

from tests.hosts import Hosts, HostsError, why_not

from benchmarks import distributed
from benchmarks.measure import Measurement

RATE = "tbf rate 50mbit burst 32kb latency 400ms"


def measurements() -> list[Measurement]:
    name = "MLP 784-128-10, a slow cable between two of four hosts: ring gossip against DDP, speed"
    if (reason := why_not()) is not None:
        return [Measurement(name, None, "×", 1.0, "higher", theirs=reason)]
    try:
        with Hosts(distributed.WORLD) as hosts:
            slow_cable(hosts, 0, 1)
            result = distributed.run("mlp", 5, wrap=lambda rank, command, env: on_host(hosts, rank, command, env))
    except HostsError as error:
        return [Measurement(name, None, "×", 1.0, "higher", theirs=str(error))]
    seconds, moved = result["seconds"], result["bytes"]
    return [
        Measurement(
            name, 1 / distributed.ratio(seconds, "ring", "ddp"), "×", 1.0, "higher",
            distributed.in_words("ring", seconds, moved), "DDP: " + distributed.in_words("ddp", seconds, moved),
            {"seconds": seconds, "bytes": moved},
        )
    ]  # fmt: skip


def slow_cable(hosts: Hosts, one: int, other: int) -> None:
    """A cable of their own for two hosts, slow in both directions; all else goes through the fast switch."""
    hosts.connect(one, other, "cable")
    for host in (one, other):
        hosts.run(host, f"tc qdisc replace dev cable root {RATE}")


def on_host(hosts: Hosts, rank: int, command: list[str], env: dict[str, str]) -> tuple[list[str], dict[str, Any]]:
    """How to start a process there."""
    meeting = {"MASTER_ADDR": hosts.address(0), "MASTER_PORT": "29511", "GLOO_SOCKET_IFNAME": "eth0"}
    return hosts.command(rank, command), env | meeting
