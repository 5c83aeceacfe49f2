"""Four hosts, network namespaces of this machine, one slow cable among fast ones: ring gossip and DDP.

The ring all-reduce of DDP sends 1.5 rows over the slow cable in each step, all in one direction; gossip sends one row
in each direction, at the same time. Needs a checkout of mixwise, and Linux that lets users make namespaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from . import distributed
from .measure import Benchmark, Contestants, Missing

RATE = "tbf rate 50mbit burst 32kb latency 400ms"


def benchmarks(tiny: bool = False) -> Iterator[Benchmark]:
    yield Benchmark(
        "MLP 784-128-10, a cable of 50 Mbit/s between two of four hosts: how much faster than DDP?",
        partial(contestants, 1 if tiny else 5), 1.0, "DDP", rounds=1 if tiny else 5, clock="wall",
    )  # fmt: skip


def contestants(rounds: int) -> Contestants:
    names = {"ring": "mixwise, ring", "ddp": "DDP"}
    try:
        from tests.hosts import Hosts, HostsError, why_not
    except ImportError:
        return dict.fromkeys(names.values(), Missing("needs a checkout of mixwise"))
    if (reason := why_not()) is not None:
        return dict.fromkeys(names.values(), Missing(reason))
    try:
        with Hosts(distributed.WORLD) as hosts:
            hosts.connect(0, 1, "cable")  # all else goes through the fast switch
            for host in (0, 1):
                hosts.run(host, f"tc qdisc replace dev cable root {RATE}")

            def wrap(rank: int) -> dict[str, Any]:
                meeting = {"MASTER_ADDR": hosts.address(0), "MASTER_PORT": "29511", "GLOO_SOCKET_IFNAME": "eth0"}
                return meeting | {"wrap": lambda words: hosts.command(rank, *words)}

            result = distributed.run("mlp", rounds, wrap=wrap)
    except HostsError as error:
        return dict.fromkeys(names.values(), Missing(str(error)))
    return distributed.contestants(lambda: result, names, per_byte=False)
