"""Networks for simulations, from what describes them."""

from __future__ import annotations

from typing import cast

import torch

from mixwise.errors import NetworkError
from mixwise.graphs import Graph
from mixwise.graphs.spec import GraphLike, as_graph
from mixwise.network.faults import Faults
from mixwise.network.faulty import FaultyNetwork
from mixwise.network.links import Link, Links
from mixwise.network.simulated import SimulatedNetwork
from mixwise.network.wire import as_wire_dtype
from mixwise.protocols import Network
from mixwise.seeding import stream


def simulated(
    graph: Graph,
    seed: int,
    *,
    links: Link | Links | None = None,
    wire_dtype: torch.dtype | str | None = None,
    faults: Faults | None = None,
) -> Network:
    """Return a network of simulated nodes; `seed` names the random stream of its faults."""
    links = Links(links) if isinstance(links, Link) else links
    network = SimulatedNetwork(graph, links, as_wire_dtype(wire_dtype))
    return network if faults is None else FaultyNetwork(network, faults, stream(seed, "network"))


def as_network(
    graph: GraphLike | Network,
    seed: int,
    *,
    links: Link | Links | None = None,
    wire_dtype: torch.dtype | str | None = None,
    faults: Faults | None = None,
) -> Network:
    """Return the network that is meant by a graph and its options, or by a network, which has its own."""
    if not isinstance(getattr(graph, "graph", None), Graph):  # no value that means a graph has such an attribute
        return simulated(as_graph(graph), seed, links=links, wire_dtype=wire_dtype, faults=faults)
    options = {"links": links, "wire_dtype": wire_dtype, "faults": faults}
    for name, value in options.items():
        if value is not None:
            raise NetworkError(f"{name} = {value!r} is given beside a network; give it to the network, or pass a graph")
    return cast(Network, graph)
