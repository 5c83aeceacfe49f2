"""The usual families of communication graphs.

Small sizes follow the formulas: an edge that would be a loop or a repeat is left out, so `ring(2)` has one edge.
A random graph depends on its arguments only: the same seed gives the same graph in every process.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import numpy as np
from scipy import sparse

from mixwise.errors import GraphError
from mixwise.graphs.conversion import from_networkx
from mixwise.graphs.graph import Graph, IntArray
from mixwise.parts import part
from mixwise.seeding import numpy_generator, stream

MAX_EDGES = 5 * 10**6  # a typo such as complete(10**6) should neither fill the memory nor take minutes
_MAX_DRAWN = 500_000  # edges of a graph that networkx draws one by one
_MAX_PLACED = 300  # nodes of a graph that has positions: a larger one is not drawn
_TRIES = 100  # draws of a random family before giving up on a connected graph


# --- fixed families ---
@part("ring", "graph", title="ring")
def ring(n: int) -> Graph:
    """The cycle i ~ i + 1 mod n; diameter ⌊n/2⌋.

    >>> ring(4).edges
    ((0, 1), (0, 3), (1, 2), (2, 3))
    """
    return _circulant(n, [1])


@part("chain", "graph", title="path")
def chain(n: int) -> Graph:
    """The path 0 – 1 – … – n−1; diameter n − 1."""
    i = np.arange(_whole("n", n))
    return _graph(len(i), (i[:-1], i[1:]))


@part("torus", "graph", title="torus")
def torus(rows: int, cols: int) -> Graph:
    """The grid with wrap-around; node r·cols + c is at row r, column c; diameter ⌊rows/2⌋ + ⌊cols/2⌋."""
    cells = _cells(rows, cols)
    return _on_a_grid(
        _graph(cells.size, (cells, np.roll(cells, -1, axis=0)), (cells, np.roll(cells, -1, axis=1))), cols
    )


@part("grid", "graph", title="grid")
def grid(rows: int, cols: int) -> Graph:
    """The rectangular grid, each node joined to those above, below, left and right; diameter rows + cols − 2."""
    cells = _cells(rows, cols)
    return _on_a_grid(_graph(cells.size, (cells[:-1], cells[1:]), (cells[:, :-1], cells[:, 1:])), cols)


@part("star", "graph", title="star")
def star(n: int) -> Graph:
    """Node 0 in the center, joined to all n − 1 others."""
    i = np.arange(_whole("n", n))
    return _graph(len(i), (np.zeros_like(i), i))


@part("complete", "graph", title="complete graph")
def complete(n: int) -> Graph:
    """Every node joined to every other one: n(n − 1)/2 edges."""
    n = _whole("n", n)
    return _graph(n, _all_pairs(n))


@part("hypercube", "graph", title="hypercube")
def hypercube(dimension: int) -> Graph:
    """2^dimension nodes, joined if their binary numbers differ in one bit; diameter `dimension`."""
    d = _whole("dimension", dimension, least=0)
    _check_room(f"dimension = {d}", d * 2.0 ** min(d, 1000) / 2)
    i = np.arange(2**d)
    graph = _graph(2**d, *((i, i ^ (1 << k)) for k in range(d)))
    if not 3 <= d <= 8:
        return graph
    # A shadow of the cube: every dimension has a direction of its own, and a length so that no two corners coincide.
    angle, length = np.pi * np.arange(d) / d, (1.0 if d == 4 else 0.65) ** np.arange(d)
    shadow = ((i[:, None] >> np.arange(d)) & 1) @ (length[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1))
    return Graph(graph.n, graph.edge_array, positions=shadow)


@part("exponential", "graph", title="exponential graph")
def exponential(n: int) -> Graph:
    """i ~ i + 2^k mod n for every 2^k < n: about 2·log₂ n neighbors and a diameter of at most ⌈log₂ n⌉."""
    return _circulant(n, _powers_of_two(n))


@part("directed-ring", "graph", title="directed ring")
def directed_ring(n: int) -> Graph:
    """The one-way cycle i → i + 1 mod n; diameter n − 1.

    >>> directed_ring(3).edges
    ((0, 1), (1, 2), (2, 0))
    """
    return _circulant(n, [1], directed=True)


@part("directed-exponential", "graph", title="directed exponential graph")
def directed_exponential(n: int) -> Graph:
    """i → i + 2^k mod n for every 2^k < n: ⌈log₂ n⌉ receivers and senders each, and a diameter of at most ⌈log₂ n⌉."""
    return _circulant(n, _powers_of_two(n), directed=True)


def one_peer_exponential(n: int) -> tuple[Graph, ...]:
    """⌈log₂ n⌉ directed graphs to be used in turn; in graph k, node i sends to i + 2^k mod n only.

    With weights 1/2 (`mixing.uniform`) each is doubly stochastic. If n is a power of two, their product is 𝟏𝟏ᵀ/n:
    exact averaging in log₂ n mixings of one message per node (Ying et al., 2021). For n = 1 there is one graph
    without arcs.

    >>> [graph.edges[0] for graph in one_peer_exponential(8)]
    [(0, 1), (0, 2), (0, 4)]
    """
    return tuple(_circulant(n, [jump], directed=True) for jump in _powers_of_two(n) or [0])


@part("social", "graph", title="social network")
def social_network() -> Graph:
    """Davis' Southern Women: 18 women and 14 events, joined by attendance; labels are the names (paper, CIFAR-10)."""
    import networkx as nx

    return from_networkx(nx.davis_southern_women_graph())


# --- random families ---
@part("random-connected", "graph", title="random connected graph")
def random_connected(n: int, keep: float = 0.5, seed: int = 0) -> Graph:
    """A connected graph with a fraction `keep` of the edges of the complete graph (paper, Quadratic Objectives).

    Edges are removed in random order, skipping those whose removal would disconnect the graph, until
    round(keep · n(n − 1)/2) are left.
    """
    n = _whole("n", n)
    i, j = _all_pairs(n)
    edges = round(_fraction("keep", keep) * len(i))
    if edges < n - 1:
        raise GraphError(f"keep = {keep} leaves {edges} edges, but {n} nodes need {n - 1}; keep at least {2 / n:.4g}")
    from scipy.sparse import csgraph  # imports all of scipy.linalg

    # An edge survives the removals if and only if it is in the minimum spanning tree under "last tried is cheapest"
    # (reverse-delete). So: take that tree, and the required number of the other edges tried last.
    last_first = numpy_generator(seed, "random_connected").permutation(len(i))
    i, j = i[last_first], j[last_first]
    cost = np.arange(1, len(i) + 1, dtype=np.float64)  # from 1: SciPy reads 0 as "no edge"
    tree = csgraph.minimum_spanning_tree(sparse.csr_array((cost, (i, j)), shape=(n, n)))
    kept = np.zeros(len(i), dtype=bool)
    kept[tree.data.astype(np.int64) - 1] = True
    kept[np.flatnonzero(~kept)[: edges - (n - 1)]] = True
    return _graph(n, (i[kept], j[kept]))


@part("random-regular", "graph", title="random regular graph")
def random_regular(n: int, degree: int = 4, seed: int = 0) -> Graph:
    """A connected graph in which every node has `degree` neighbors, redrawn until it is connected."""
    n, degree = _whole("n", n), _whole("degree", degree, least=0)
    if degree >= n or n * degree % 2 or (degree < 2 and n > degree + 1):
        rule = "use 2 ≤ degree < n with n · degree even"
        raise GraphError(f"there is no connected graph of {n} nodes with {degree} neighbors each; {rule}")
    if degree == 2:  # the only connected one is a cycle, which a draw hits about once in √n times
        return ring(n).permuted(numpy_generator(seed, "random_regular").permutation(n).tolist())
    _check_room(f"n = {n}, degree = {degree}", n * min(degree, n - 1 - degree) / 2, _MAX_DRAWN)
    _check_room(f"n = {n}, degree = {degree}", n * degree / 2)
    import networkx as nx

    absent = n - 1 - degree  # draw the complement of a dense graph: the pairing model rarely succeeds on dense graphs
    for attempt in range(_TRIES):
        drawn = nx.random_regular_graph(min(degree, absent), n, seed=stream(seed, "random_regular", attempt))
        graph = Graph(n, list((drawn if degree <= absent else nx.complement(drawn)).edges()))
        if graph.is_connected:
            return graph
    raise GraphError(f"none of {_TRIES} draws was connected; raise the degree")


@part("erdos-renyi", "graph", title="Erdős–Rényi graph")
def erdos_renyi(n: int, probability: float, seed: int = 0) -> Graph:
    """G(n, p): each pair is an edge with the given probability. It may be disconnected."""
    n = _whole("n", n)
    pairs = n * (n - 1) // 2
    _check_room(f"n = {n}, probability = {probability}", _fraction("probability", probability) * pairs)
    draws = numpy_generator(seed, "erdos_renyi")
    # First how many edges, then which ones: the distribution of one coin per pair, in time ~ edges.
    e = draws.choice(pairs, draws.binomial(pairs, probability), replace=False, shuffle=False)
    i, j = np.divmod(e, n)  # pairs i < j numbered row by row; what falls below the diagonal is reflected above it
    below = j <= i
    return _graph(n, (np.where(below, n - 2 - i, i), np.where(below, n - 1 - j, j)))


@part("random-geometric", "graph", title="random geometric graph")
def random_geometric(n: int, radius: float, seed: int = 0) -> Graph:
    """Points drawn in the unit square, joined if at most `radius` apart. It may be disconnected."""
    n = _whole("n", n)
    if not (math.isfinite(radius) and radius >= 0):
        raise GraphError(f"radius = {radius}; give a finite number of at least 0 (the unit square has a side of 1)")
    _check_room(f"n = {n}, radius = {radius}", min(1.0, math.pi * min(radius, 1.0) ** 2) * n * (n - 1) / 2)
    from scipy.spatial import KDTree

    points = numpy_generator(seed, "random_geometric").random((n, 2))
    return Graph(n, KDTree(points).query_pairs(radius, output_type="ndarray"))


@part("small-world", "graph", title="small-world graph")
def small_world(n: int, neighbors: int = 4, rewire: float = 0.1, seed: int = 0) -> Graph:
    """Watts–Strogatz: a ring lattice of `neighbors` nearest nodes, each edge moved with probability `rewire`.

    It is redrawn until it is connected.
    """
    n, neighbors = _whole("n", n), _whole("neighbors", neighbors, least=2)
    _fraction("rewire", rewire)
    if neighbors % 2 or neighbors >= n:
        raise GraphError(f"neighbors = {neighbors} with n = {n}; give an even number below n, half on either side")
    _check_room(f"n = {n}, neighbors = {neighbors}", n * neighbors / 2, _MAX_DRAWN)
    import networkx as nx

    try:
        drawn = nx.connected_watts_strogatz_graph(n, neighbors, rewire, _TRIES, stream(seed, "small_world"))
    except nx.NetworkXError:
        raise GraphError(f"none of {_TRIES} draws was connected; raise neighbors or lower rewire") from None
    return Graph(n, list(drawn.edges()))


# --- building blocks ---
def _graph(n: int, *ends: tuple[IntArray, IntArray], directed: bool = False) -> Graph:
    """The graph with the edges i[e] – j[e] of every pair (i, j) of equally shaped arrays."""
    pairs = [np.stack([i.ravel(), j.ravel()], axis=1) for i, j in ends]
    return Graph(n, np.concatenate(pairs) if pairs else [], directed)


def _circulant(n: int, jumps: Sequence[int], directed: bool = False) -> Graph:
    """i → i + jump mod n for every jump."""
    i = np.arange(_whole("n", n))
    _check_room(f"n = {n}", len(i) * len(jumps))
    return _graph(len(i), *((i, (i + jump) % len(i)) for jump in jumps), directed=directed)


def _powers_of_two(n: int) -> list[int]:
    """Every 2^k < n."""
    return [1 << k for k in range((_whole("n", n) - 1).bit_length())]


def _on_a_grid(graph: Graph, cols: int) -> Graph:
    """The graph with its nodes drawn in rows and columns, if it is small enough to be drawn."""
    if min(cols, graph.n // cols) < 2 or graph.n > _MAX_PLACED:
        return graph
    y, x = np.divmod(np.arange(graph.n), cols)
    return Graph(graph.n, graph.edge_array, positions=np.stack([x, y], axis=1))


def _cells(rows: int, cols: int) -> IntArray:
    """The numbers 0..rows·cols−1 as a (rows, cols) array."""
    size = _whole("rows", rows) * _whole("cols", cols)
    _check_room(f"rows = {rows}, cols = {cols}", 2 * size)
    return np.arange(size).reshape(int(rows), -1)


def _all_pairs(n: int) -> tuple[IntArray, IntArray]:
    """Every pair i < j."""
    _check_room(f"n = {n}", n * (n - 1) / 2)
    i, j = np.triu_indices(n, k=1)
    return i, j


# --- checks ---
def _whole(name: str, value: int, least: int = 1) -> int:
    """`value` as an int, checked to be one in least..MAX_EDGES."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= MAX_EDGES:
        rule = f"at least {least}" if number < least else f"at most {MAX_EDGES}"
        raise GraphError(f"{name} = {value!r}; give a whole number of {rule}")
    return number


def _fraction(name: str, value: float) -> float:
    """`value`, checked to lie in [0, 1]."""
    if not 0 <= value <= 1:  # NaN fails every comparison
        raise GraphError(f"{name} = {value}; give a number from 0 to 1")
    return value


def _check_room(what: str, edges: float, most: int = MAX_EDGES) -> None:
    """Raise `GraphError` for a graph that would take too much memory or time."""
    if edges > most:
        raise GraphError(f"{what} makes about {edges:.2g} edges, allowed are {most:.0e}; use fewer nodes")
