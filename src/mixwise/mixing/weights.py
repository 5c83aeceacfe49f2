"""Mixing matrices that know the graph but not the data.

Legend: d_i the degree of node i, itself not counted. Off the diagonal each builder sets w_ij; the loop w_ii takes what
is left of its row. Symmetric weights whose rows sum to 1 are doubly stochastic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mixwise.errors import MixingError
from mixwise.graphs import Graph, complete
from mixwise.mixing.matrix import FloatArray, Kind, MixingMatrix, row_sums
from mixwise.parts import part


@part("metropolis-hastings", "scheme", title="Metropolis-Hastings weights")
def metropolis_hastings(graph: Graph) -> MixingMatrix:
    """w_ij = 1 / (1 + max(d_i, d_j)): needs only the neighbors' degrees (the paper's baseline; 1/3 on a ring).

    >>> from mixwise.graphs import Graph
    >>> metropolis_hastings(Graph(3, [(0, 1), (1, 2)])).to_dense().round(3).tolist()
    [[0.667, 0.333, 0.0], [0.333, 0.333, 0.333], [0.0, 0.333, 0.667]]
    """
    _need_undirected(graph, "metropolis_hastings")
    degrees = np.asarray(graph.degrees)
    rows, cols = graph.pattern.rows, graph.pattern.cols
    return _filled(graph, 1 / (1 + np.maximum(degrees[rows], degrees[cols])))


@part("max-degree", "scheme", title="max-degree weights")
def max_degree(graph: Graph) -> MixingMatrix:
    """w_ij = 1 / (1 + max_k d_k): the same weight on every edge."""
    _need_undirected(graph, "max_degree")
    return _filled(graph, np.full(len(graph.pattern.rows), 1 / (1 + max(graph.degrees))))


@part("uniform", "scheme", title="uniform weights")
def uniform(graph: Graph) -> MixingMatrix:
    """w_ij = w_ii = 1 / (1 + d) on a graph where every node has the same degree d, directed or not."""
    if not graph.is_regular:
        low, high = min(graph.degrees + graph.in_degrees), max(graph.degrees + graph.in_degrees)
        raise MixingError(
            f"uniform weights need a regular graph, but the degrees run from {low} to {high}; "
            f"take metropolis_hastings(graph) or max_degree(graph)"
        )
    return MixingMatrix(graph, np.full(len(graph.pattern.rows), 1 / (1 + graph.degrees[0])))


@part("uniform-sender", "scheme", title="uniform weights of the senders")
def uniform_sender(graph: Graph) -> MixingMatrix:
    """w_ij = w_ii = 1 / (1 + d_i) with d_i the receivers of i: each node splits what it sends evenly (kind="sender").

    What push-sum runs on: a node needs to know only how many nodes it sends to, on any graph, directed or not.

    >>> from mixwise.graphs import Graph
    >>> uniform_sender(Graph(3, [(0, 1), (0, 2), (1, 0)], directed=True)).to_dense().round(3).tolist()
    [[0.333, 0.333, 0.333], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    """
    degrees = np.asarray(graph.degrees)
    return MixingMatrix(graph, 1 / (1 + degrees[graph.pattern.rows]), kind="sender")


@part("lazy-metropolis-hastings", "scheme", title="lazy Metropolis-Hastings weights")
def lazy_metropolis_hastings(graph: Graph) -> MixingMatrix:
    """(I + W) / 2 with Metropolis-Hastings weights W, made exactly symmetric: no eigenvalue is negative."""
    return lazy(symmetrized(metropolis_hastings(graph)))


@part("full-averaging", "scheme", title="full averaging: every node hears all others")
def full_averaging(graph: Graph) -> MixingMatrix:
    """w_ij = 1/n for all pairs, whatever the edges of the graph: a baseline, not gossip."""
    return uniform(complete(graph.n))


@part("cliques", "scheme", title="averaging inside groups")
def clique_averaging(cliques: Iterable[Sequence[int]], graph: Graph | None = None) -> MixingMatrix:
    """Full averaging inside each clique, w_ij = 1/|C|, and nothing between them (paper, Example 2 and D-Cliques).

    Args:
        cliques: disjoint groups of nodes that all know each other; a node in no group keeps to itself.
        graph: where the cliques live; by default the graph made of just these cliques.
    """
    groups = [group for clique in cliques if (group := sorted(int(i) for i in clique))]
    members = [i for group in groups for i in group]
    if len(set(members)) != len(members):
        twice = next(i for i in members if members.count(i) > 1)
        raise MixingError(f"node {twice} is in two cliques; clique averaging needs disjoint cliques")
    pairs = [(i, j) for group in groups for i in group for j in group if i < j]
    if graph is None:
        graph = Graph(1 + max(members, default=0), pairs)
    outside = [i for i in members if not 0 <= i < graph.n]
    if outside:
        raise MixingError(f"node {outside[0]} is in a clique, but the nodes are 0..{graph.n - 1}")
    dense = np.eye(graph.n)
    for group in groups:
        dense[np.ix_(group, group)] = 1 / len(group)
    return MixingMatrix.from_dense(dense, graph)


def from_edge_weights(
    graph: Graph, weights: Mapping[tuple[int, int], float] | npt.ArrayLike, kind: Kind = "doubly"
) -> MixingMatrix:
    """Weights per edge; the loops take what is left of their rows.

    Args:
        graph: who may talk to whom.
        weights: {(i, j): w}, or one number per entry of `graph.edges`. On an undirected graph a weight holds in both
            directions, unless the mapping gives both (i, j) and (j, i).
        kind: see `MixingMatrix`.
    """
    if isinstance(weights, Mapping):
        given = {(int(i), int(j)): float(w) for (i, j), w in weights.items()}
    else:
        values = np.asarray(weights, dtype=np.float64).reshape(-1)
        if len(values) != len(graph.edges):
            raise MixingError(f"{len(values)} weights for {len(graph.edges)} edges; give one per entry of graph.edges")
        given = dict(zip(graph.edges, values.tolist(), strict=True))
    if not graph.directed:
        given = {(j, i): w for (i, j), w in given.items()} | given
    rows, cols = graph.pattern.rows.tolist(), graph.pattern.cols.tolist()
    loops = [i for i, j in given if i == j]
    if loops:
        raise MixingError(
            f"a weight is given for ({loops[0]}, {loops[0]}), but a loop takes what is left of its row; drop it"
        )
    strangers = set(given) - set(zip(rows, cols, strict=True))
    if strangers:
        i, j = min(strangers)
        raise MixingError(f"a weight is given for ({i}, {j}), but node {i} has no edge to node {j}; drop it")
    w = np.array([given.get(arc, 0.0) for arc in zip(rows, cols, strict=True)])
    return _filled(graph, w, kind)


def lazy(W: MixingMatrix) -> MixingMatrix:
    """(I + W) / 2: every eigenvalue moves to the right half of the unit disc."""
    rows, cols = W.graph.pattern.rows, W.graph.pattern.cols
    loops = (rows == cols) & (rows >= W.nodes.start) & (rows < W.nodes.stop)
    return MixingMatrix(W.graph, (W.weights + loops) / 2, W.kind, W.tolerance, W.nodes)


def symmetrized(W: MixingMatrix) -> MixingMatrix:
    """(W + Wᵀ) / 2, doubly stochastic again."""
    _need_undirected(W.graph, "symmetrized")
    if W.kind != "doubly":
        raise MixingError('symmetrized needs kind="doubly": the mean of W and Wᵀ has row sums 1 only then')
    # By column, then row, is the order of the transposed entries; on an undirected graph both lists have the same arcs.
    weights = (W.weights + W.weights[W.graph.pattern.by_column]) / 2
    return MixingMatrix(W.graph, weights, W.kind, W.tolerance, W.nodes)


def _filled(graph: Graph, weights: FloatArray, kind: Kind = "doubly") -> MixingMatrix:
    """The matrix with the off-diagonal `weights` given and the loops filled up to row sums of 1."""
    loops = graph.pattern.rows == graph.pattern.cols
    w = np.where(loops, 0.0, weights)
    left = 1 - row_sums(graph, w)
    if left.min() < -1e-12:
        i = int(left.argmin())
        raise MixingError(
            f"the weights on the edges of node {i} sum to {1 - left[i]:.6g}, which leaves {left[i]:.6g} for itself; "
            f"they may sum to 1 at most: scale them down"
        )
    w[loops] = left.clip(min=0)
    return MixingMatrix(graph, w, kind)


def _need_undirected(graph: Graph, builder: str) -> None:
    if graph.directed:
        raise MixingError(
            f"{builder} needs an undirected graph, since its weights are the same both ways; "
            f"on a directed graph take minimize_gme(gram, graph), uniform(graph) if it is regular, or "
            f"uniform_sender(graph) for push-sum"
        )
