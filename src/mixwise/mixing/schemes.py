"""Weighting schemes by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mixwise.graphs import Graph, complete
from mixwise.mixing.fastest import fastest_mixing
from mixwise.mixing.matrix import MixingMatrix
from mixwise.mixing.weights import lazy, max_degree, metropolis_hastings, symmetrized, uniform, uniform_sender

SCHEMES: Mapping[str, Callable[[Graph], MixingMatrix]] = {
    "metropolis-hastings": metropolis_hastings,
    "optimal-gap": fastest_mixing,
    "max-degree": max_degree,
    "uniform": uniform,
    "uniform-sender": uniform_sender,
    "lazy-metropolis-hastings": lambda graph: lazy(symmetrized(metropolis_hastings(graph))),
    "full-averaging": lambda graph: uniform(complete(graph.n)),  # a baseline: every node hears all others
}
