"""Policies whose graph changes from mixing to mixing; the plan of mixing t depends on t and the seed alone."""

from __future__ import annotations

from collections.abc import Sequence

from mixwise.errors import MixingError
from mixwise.graphs import Graph, edge_sample, random_matching
from mixwise.mixing import MixingMatrix, lazy, matcha, metropolis_hastings
from mixwise.network import Network
from mixwise.policies.plan import Observation, Plan, Stateless
from mixwise.seeding import stream


class Cycle(Stateless):
    """Matrix t mod k at mixing t, of k matrices in turn.

    For sequences that average exactly after one turn, such as `mixing.base_graph(n, peers)`, or
    `[mixing.uniform(graph) for graph in graphs.one_peer_exponential(n)]` with n a power of two.
    """

    def __init__(self, matrices: Sequence[MixingMatrix]) -> None:
        if not matrices:
            raise MixingError("a cycle needs at least one matrix")
        sizes = sorted({W.n for W in matrices})
        if len(sizes) > 1:
            raise MixingError(f"the matrices of a cycle are for {sizes} nodes; they must all mix the same nodes")
        self.matrices = tuple(matrices)

    def known_matrices(self) -> tuple[MixingMatrix, ...]:
        """All of them."""
        return self.matrices

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """One round with the matrix whose turn it is."""
        return Plan((self.matrices[t % len(self.matrices)],))


class _Drawn(Stateless):
    """A symmetric matrix drawn anew at every mixing, (I + W) / 2 of it if the algorithm asks for that."""

    lazy = False
    seed: int

    def rename_streams(self, name: str) -> None:
        """The draws of another seed."""
        self.seed = stream(self.seed, "part", name)

    def ask(self, *, symmetric: bool = False, lazy: bool = False) -> None:
        """Symmetric they are; lazy they become."""
        self.lazy = self.lazy or lazy

    def weights(self, t: int) -> MixingMatrix:
        """The matrix of mixing t."""
        raise NotImplementedError

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """One round with the matrix drawn for mixing t."""
        W = self.weights(t)
        return Plan((lazy(W) if self.lazy else W,))


class Matchings(_Drawn):
    """A random maximal matching at every mixing: each node averages with one other, or with nobody."""

    def __init__(self, graph: Graph, seed: int = 0) -> None:
        random_matching(graph)  # a directed graph is refused now
        self.graph, self.seed = graph, seed

    def weights(self, t: int) -> MixingMatrix:
        """1/2 and 1/2 for every pair: Metropolis-Hastings where nobody has more than one neighbor."""
        return metropolis_hastings(random_matching(self.graph, self.seed, t))


class Matcha(_Drawn):
    """MATCHA (Wang et al., 2019): a share `budget` of the matchings is on, on average, important ones more often."""

    def __init__(self, graph: Graph, budget: float, seed: int = 0) -> None:
        self.drawn_from, self.seed = matcha(graph, budget), seed

    def weights(self, t: int) -> MixingMatrix:
        """I − α L of the matchings that are on."""
        return self.drawn_from.draw(self.seed, t)


class EdgeSampling(_Drawn):
    """Every edge is there with the given probability, at every mixing anew; Metropolis-Hastings on what is there."""

    def __init__(self, graph: Graph, probability: float, seed: int = 0) -> None:
        metropolis_hastings(edge_sample(graph, probability))  # a wrong value is refused now
        self.graph, self.probability, self.seed = graph, probability, seed

    def weights(self, t: int) -> MixingMatrix:
        """Metropolis-Hastings on the edges of the moment."""
        return metropolis_hastings(edge_sample(self.graph, self.probability, self.seed, t))
