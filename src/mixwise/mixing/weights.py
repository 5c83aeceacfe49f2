"""Mixing matrices that know the graph but not the data.

Legend: d_i the degree of node i, not counting itself. Each builder gives the off-diagonal weights w_ij; the loop w_ii
is what is left of its row. Symmetric weights whose rows sum to 1 are doubly stochastic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product

import numpy as np
import numpy.typing as npt

from mixwise.errors import MixingError
from mixwise.graphs import Graph, complete
from mixwise.graphs.graph import IntArray
from mixwise.graphs.spec import as_graph
from mixwise.mixing.matrix import FloatArray, Kind, MixingMatrix, row_sums
from mixwise.parts import part

_MOST_AVERAGED = 3_000  # nodes whose pairs all have a weight


@part("metropolis-hastings", "scheme", title="Metropolis-Hastings weights")
def metropolis_hastings(graph: Graph) -> MixingMatrix:
    """w_ij = 1 / (1 + max(d_i, d_j)): needs only the neighbors' degrees (the paper's baseline; 1/3 on a ring).

    >>> from mixwise.graphs import Graph
    >>> metropolis_hastings(Graph(3, [(0, 1), (1, 2)])).to_dense().round(3).tolist()
    [[0.667, 0.333, 0.0], [0.333, 0.333, 0.333], [0.0, 0.333, 0.667]]
    """
    graph = _undirected(graph, "metropolis_hastings")
    d = np.asarray(graph.degrees)
    return _with_loops(graph, 1 / (1 + np.maximum(d[graph.pattern.rows], d[graph.pattern.cols])))


@part("max-degree", "scheme", title="max-degree weights")
def max_degree(graph: Graph) -> MixingMatrix:
    """w_ij = 1 / (1 + max_k d_k): the same weight on every edge."""
    graph = _undirected(graph, "max_degree")
    return _with_loops(graph, np.full(len(graph.pattern.rows), 1 / (1 + max(graph.degrees))))


@part("uniform", "scheme", title="uniform weights")
def uniform(graph: Graph) -> MixingMatrix:
    """w_ij = w_ii = 1 / (1 + d) on a graph where every node has the same degree d, directed or not."""
    graph = as_graph(graph)
    if not graph.is_regular:
        low, high = min(graph.degrees + graph.in_degrees), max(graph.degrees + graph.in_degrees)
        found = f"uniform weights need a regular graph, but the degrees run from {low} to {high}"
        raise MixingError(f"{found}; use metropolis_hastings(graph) or max_degree(graph)")
    return MixingMatrix(graph, np.full(len(graph.pattern.rows), 1 / (1 + graph.degrees[0])))


@part("uniform-sender", "scheme", title="uniform weights of the senders")
def uniform_sender(graph: Graph) -> MixingMatrix:
    """w_ij = w_ii = 1 / (1 + d_i) with d_i the receivers of i: each node splits what it sends evenly (kind="sender").

    These are the weights of push-sum: on any graph, directed or not, a node needs only the number of its receivers.

    >>> from mixwise.graphs import Graph
    >>> uniform_sender(Graph(3, [(0, 1), (0, 2), (1, 0)], directed=True)).to_dense().round(3).tolist()
    [[0.333, 0.333, 0.333], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    """
    graph = as_graph(graph)
    return MixingMatrix(graph, 1 / (1 + np.asarray(graph.degrees)[graph.pattern.rows]), kind="sender")


@part("lazy-metropolis-hastings", "scheme", title="lazy Metropolis-Hastings weights")
def lazy_metropolis_hastings(graph: Graph) -> MixingMatrix:
    """(I + W) / 2 with Metropolis-Hastings weights W, made exactly symmetric: no eigenvalue is negative."""
    return lazy(symmetrized(metropolis_hastings(graph)))


@part("full-averaging", "scheme", title="full averaging: every node hears all others", reference=True)
def full_averaging(graph: Graph) -> MixingMatrix:
    """w_ij = 1/n for all pairs, on any graph: a baseline, not gossip."""
    graph = as_graph(graph)
    if graph.n > _MOST_AVERAGED:
        raise MixingError(
            f"full-averaging on {graph.n} nodes needs {graph.n**2:.0e} weights; use algorithm: local-sgd with "
            f"policy: none, which averages over all nodes without weights"
        )
    return uniform(complete(graph.n))


@part("cliques", "scheme", title="averaging inside groups")
def clique_averaging(cliques: Iterable[Sequence[int]], graph: Graph | None = None) -> MixingMatrix:
    """Full averaging inside each clique, w_ij = 1/|C|, and nothing between them (paper, Example 2 and D-Cliques).

    Args:
        cliques: disjoint groups of nodes that are all neighbors; a node in no group keeps its own row.
        graph: the graph that contains the cliques; by default it consists of just these cliques.
    """
    groups = [sorted(map(int, clique)) for clique in cliques]
    members = [i for group in groups for i in group]
    if len(set(members)) != len(members):
        twice = next(i for i in members if members.count(i) > 1)
        raise MixingError(f"node {twice} is in two cliques; clique averaging needs disjoint cliques")
    if graph is None:
        graph = Graph(1 + max(members, default=0), [pair for group in groups for pair in combinations(group, 2)])
    graph = as_graph(graph)
    for i in members:
        if not 0 <= i < graph.n:
            raise MixingError(f"node {i} is in a clique, but the nodes are 0..{graph.n - 1}")
    weights = (graph.pattern.rows == graph.pattern.cols).astype(np.float64)
    for group in filter(None, groups):
        weights[_positions(graph, np.array(list(product(group, repeat=2))))] = 1 / len(group)
    return MixingMatrix(graph, weights)


def from_edge_weights(
    graph: Graph, weights: Mapping[tuple[int, int], float] | npt.ArrayLike, kind: Kind = "doubly"
) -> MixingMatrix:
    """The matrix with the given off-diagonal weights.

    Args:
        graph: the communication graph.
        weights: {(i, j): w}, or one number per entry of `graph.edges`. On an undirected graph a weight holds in both
            directions, unless the mapping gives both (i, j) and (j, i).
        kind: see `MixingMatrix`.
    """
    graph = as_graph(graph)
    if isinstance(weights, Mapping):
        arcs = np.array(list(weights), dtype=np.int64).reshape(-1, 2)
        values = np.array(list(weights.values()), dtype=np.float64)
    else:
        arcs, values = graph.edge_array, np.asarray(weights, dtype=np.float64).reshape(-1)
        if len(values) != len(arcs):
            raise MixingError(f"{len(values)} weights for {len(arcs)} edges; give one per entry of graph.edges")
    for i, j in arcs[arcs[:, 0] == arcs[:, 1]]:
        raise MixingError(f"a weight is given for ({i}, {j}), but a loop takes what is left of its row; drop it")
    w, given = np.zeros(len(graph.pattern.rows)), _positions(graph, arcs)
    if not graph.directed:
        w[_positions(graph, arcs[:, ::-1])] = values
    w[given] = values
    return _with_loops(graph, w, kind)


def lazy(W: MixingMatrix) -> MixingMatrix:
    """(I + W) / 2, whose eigenvalues lie in the right half of the unit disc."""
    rows, cols = W.graph.pattern.rows, W.graph.pattern.cols
    identity = (rows == cols) & (rows >= W.nodes.start) & (rows < W.nodes.stop)
    return MixingMatrix(W.graph, (W.weights + identity) / 2, W.kind, W.tolerance, W.nodes)


def symmetrized(W: MixingMatrix) -> MixingMatrix:
    """(W + Wᵀ) / 2, which is doubly stochastic again."""
    _undirected(W.graph, "symmetrized")
    if W.kind != "doubly":
        raise MixingError('symmetrized needs kind="doubly": only then does the mean of W and Wᵀ have row sums of 1')
    # On an undirected graph, sorting the entries by column and row gives the transposed entries.
    weights = (W.weights + W.weights[W.graph.pattern.by_column]) / 2
    return MixingMatrix(W.graph, weights, W.kind, W.tolerance, W.nodes)


def _with_loops(graph: Graph, weights: FloatArray, kind: Kind = "doubly") -> MixingMatrix:
    """The matrix with these off-diagonal weights and w_ii = 1 − Σ_{j≠i} w_ij."""
    loops = graph.pattern.rows == graph.pattern.cols
    w = np.where(loops, 0.0, weights)
    left = 1 - row_sums(graph, w)
    if left.min() < -1e-12:
        i = int(left.argmin())
        found = f"the weights on the edges of node {i} sum to {1 - left[i]:.6g}"
        raise MixingError(f"{found}, which leaves {left[i]:.6g} for its loop; scale them down to a sum of 1 at most")
    w[loops] = left.clip(min=0)
    return MixingMatrix(graph, w, kind)


def _positions(graph: Graph, arcs: IntArray) -> IntArray:
    """Where the entries (i, j) of `arcs` (K, 2) are in `graph.pattern`, which must contain them."""
    keys = graph.pattern.rows * graph.n + graph.pattern.cols
    inside = ((arcs >= 0) & (arcs < graph.n)).all(axis=1)
    wanted = np.where(inside, arcs[:, 0] * graph.n + arcs[:, 1], -1)
    positions = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    for i, j in arcs[keys[positions] != wanted]:
        raise MixingError(f"a weight is given for ({i}, {j}), which is not an edge; drop it or add the edge")
    return positions


def _undirected(value: Graph, builder: str) -> Graph:
    graph = as_graph(value)
    if graph.directed:
        remedy = "on a directed graph use minimize_gme, uniform if it is regular, or uniform_sender for push-sum"
        raise MixingError(f"{builder} needs an undirected graph; {remedy}")
    return graph
