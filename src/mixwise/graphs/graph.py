"""The communication graph, as an immutable value.

Legend: n nodes 0..n-1; E edges; A arcs, of which an undirected edge has two.
An edge {i, j} is stored once, as i < j; in a directed graph it is the arc i → j ("i sends to j"). Self-loops are
implied, because a node always has its own row, and are never stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

from mixwise.errors import GraphError

IntArray: TypeAlias = npt.NDArray[np.int64]
_MAX_NODES = 10**9
Edges: TypeAlias = Iterable[tuple[int, int]] | npt.NDArray[np.integer]


class Pattern(NamedTuple):
    """The sparsity pattern of a mixing matrix: all arcs i → j and all loops, sorted by row i, then column j (CSR)."""

    rows: IntArray  # (A + n,)  the sender i
    cols: IntArray  # (A + n,)  the receiver j
    indptr: IntArray  # (n + 1,)  where each row starts
    by_column: IntArray  # (A + n,)  the permutation that sorts the entries by column, then row


class Arcs(NamedTuple):
    """All arcs i → j without the loops, sorted by (i, j)."""

    senders: IntArray  # (A,)  i
    receivers: IntArray  # (A,)  j
    by_receiver: IntArray  # (A,)  the permutation that sorts the arcs by (j, i), the order in which messages arrive


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """An immutable, hashable graph on the nodes 0..n-1.

    Args:
        n: the number of nodes.
        edges: pairs of nodes, in any order; repeated edges and loops are dropped.
        directed: whether (i, j) means that i sends to j only.
        labels: one name per node, for display; not part of the value.
        positions: (n, 2), where pictures put the nodes, in any unit, y downwards; not part of the value.

    >>> g = Graph(4, [(0, 1), (1, 2), (2, 3)])
    >>> g.degrees, g.diameter, g.neighbors(1)
    ((1, 2, 2, 1), 3, (0, 2))
    >>> g == Graph(4, [(3, 2), (1, 0), (2, 1), (2, 1)])
    True
    """

    n: int
    edge_array: IntArray  # (E, 2), sorted, each edge once
    directed: bool = False
    labels: tuple[str, ...] | None = None
    positions: npt.NDArray[np.float64] | None = None

    def __init__(
        self,
        n: int,
        edges: Edges,
        directed: bool = False,
        labels: Sequence[str] | None = None,
        positions: npt.ArrayLike | None = None,
    ) -> None:
        if not 1 <= n <= _MAX_NODES or n != int(n):
            raise GraphError(
                f"a graph needs a whole number of nodes, at most {_MAX_NODES:.0e} and at least 1, got n = {n}"
            )
        if labels is not None and len(labels) != n:
            raise GraphError(f"{len(labels)} labels for {n} nodes; give one label per node or none")
        spots = None if positions is None else np.array(positions, dtype=np.float64)
        if spots is not None and (spots.shape != (n, 2) or not np.isfinite(spots).all()):
            raise GraphError(f"positions of shape {spots.shape} for {n} nodes; give finite x and y for every node")
        vars(self).update(
            n=int(n),
            edge_array=_normalized(int(n), edges, directed),
            directed=bool(directed),
            labels=None if labels is None else tuple(map(str, labels)),
            positions=spots,
        )

    # --- value semantics ---
    @cached_property
    def _key(self) -> tuple[int, bool, bytes]:
        return self.n, self.directed, self.edge_array.tobytes()

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Graph) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __deepcopy__(self, memo: dict[int, object]) -> Graph:
        return self

    def __reduce__(self) -> tuple[type[Graph], tuple[object, ...]]:
        # A pickled array loses its read-only flag.
        return Graph, (self.n, self.edge_array, self.directed, self.labels, self.positions)

    def __repr__(self) -> str:
        kind = "directed, " if self.directed else ""
        return f"Graph(n={self.n}, {kind}{len(self.edge_array)} {'arcs' if self.directed else 'edges'})"

    def _repr_svg_(self) -> str | None:
        """A picture for notebooks; None if the graph is too large for one."""
        from mixwise.graphs.drawing import graph_figure, is_drawable, svg  # it needs this module

        return svg(graph_figure(self), repr(self)) if is_drawable(self) else None

    # --- adjacency ---
    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Each edge once, sorted: (i, j) with i < j, or the arc i → j if directed."""
        return tuple((i, j) for i, j in self.edge_array.tolist())

    @cached_property
    def pattern(self) -> Pattern:
        """The entries of a mixing matrix on this graph that may be non-zero."""
        loops = np.arange(self.n)
        keys = np.sort(np.concatenate([self._arc_keys, loops * self.n + loops]))  # much faster than to sort pairs
        rows, cols = np.divmod(keys, self.n)
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=self.n))])
        return _read_only(Pattern(rows, cols, indptr, np.argsort(cols * self.n + rows)))

    @cached_property
    def arcs(self) -> Arcs:
        """The directions in which messages may travel."""
        senders, receivers = np.divmod(np.sort(self._arc_keys), self.n)
        return _read_only(Arcs(senders, receivers, np.argsort(receivers * self.n + senders)))

    @property
    def _arc_keys(self) -> IntArray:
        """i n + j for every arc, in the order of (i, j) if directed."""
        i, j = self.edge_array.T
        keys: IntArray = i * self.n + j
        return keys if self.directed else np.concatenate([keys, j * self.n + i])

    @cached_property
    def adjacency(self) -> sparse.csr_array:
        """The adjacency matrix (n, n) in CSR: 1 at (i, j) if i may send to j, no loops."""
        senders, receivers, _ = self.arcs
        return sparse.csr_array((np.ones(len(senders)), (senders, receivers)), shape=(self.n, self.n))

    def neighbors(self, i: int) -> tuple[int, ...]:
        """The nodes that i may send to, ascending, without i itself."""
        self._check_node(i)
        row = self.pattern.cols[self.pattern.indptr[i] : self.pattern.indptr[i + 1]]
        return tuple(row[row != i].tolist())

    def in_neighbors(self, j: int) -> tuple[int, ...]:
        """The nodes that j may hear from, ascending, without j itself; `neighbors(j)` if undirected."""
        if not self.directed:
            return self.neighbors(j)
        self._check_node(j)
        return tuple(self.edge_array[self.edge_array[:, 1] == j, 0].tolist())

    @cached_property
    def degrees(self) -> tuple[int, ...]:
        """How many nodes each node may send to, not counting itself."""
        return tuple((np.diff(self.pattern.indptr) - 1).tolist())

    @cached_property
    def in_degrees(self) -> tuple[int, ...]:
        """How many nodes each node may hear from, not counting itself."""
        return tuple((np.bincount(self.pattern.cols) - 1).tolist())

    @property
    def is_complete(self) -> bool:
        """Whether every node may send to every other one."""
        return len(self.arcs.senders) == self.n * (self.n - 1)

    @property
    def is_regular(self) -> bool:
        """Whether all nodes send to, and hear from, the same number of nodes."""
        return len({*self.degrees, *self.in_degrees}) == 1

    # --- connectivity ---
    @cached_property
    def components(self) -> tuple[tuple[int, ...], ...]:
        """The (strongly) connected components, each ascending, ordered by their smallest node."""
        from scipy.sparse import csgraph  # imports all of scipy.linalg, which most users of a graph do not need

        _, names = csgraph.connected_components(self.adjacency, directed=self.directed, connection="strong")
        groups = np.split(np.argsort(names, kind="stable"), np.cumsum(np.bincount(names))[:-1])
        return tuple(sorted(tuple(group.tolist()) for group in groups))

    @property
    def is_connected(self) -> bool:
        """Whether every node can reach every other one, along the arcs if directed."""
        return len(self.components) == 1

    @cached_property
    def diameter(self) -> int:
        """The largest number of hops between two nodes."""
        self._check_connected("its diameter is infinite")
        from scipy.sparse import csgraph

        blocks = (range(start, min(start + 256, self.n)) for start in range(0, self.n, 256))  # short distance tables
        return max(int(csgraph.dijkstra(self.adjacency, indices=block, unweighted=True).max()) for block in blocks)

    def require_undirected(self, user: str) -> None:
        """Raise `GraphError` if the graph is directed; `user` names what needs undirected edges."""
        if self.directed:
            raise GraphError(f"{user} needs an undirected graph, got {self}; use Graph(graph.n, graph.edges)")

    def require_connected(self, user: str) -> None:
        """Raise `GraphError` unless the graph is undirected and connected."""
        self.require_undirected(user)
        self._check_connected(f"but {user} needs a connected graph")

    def _check_connected(self, consequence: str) -> None:
        if not self.is_connected:
            remedy = "add edges, or use one component: graph.subgraph(max(graph.components, key=len))"
            raise GraphError(f"the graph has {len(self.components)} components, {consequence}; {remedy}")

    # --- derived graphs ---
    def permuted(self, order: Sequence[int]) -> Graph:
        """The graph with its nodes moved: node `order[a]` takes the place of node a.

        >>> Graph(3, [(0, 1), (1, 2)]).permuted([1, 0, 2]).edges
        ((0, 1), (0, 2))
        """
        places = np.asarray(order)
        if sorted(places.tolist()) != list(range(self.n)):
            raise GraphError(f"order = {list(order)} is not a permutation of the nodes 0..{self.n - 1}")
        at = np.argsort(places)  # a label names a place, so it moves with it
        labels = None if self.labels is None else [self.labels[a] for a in at]
        spots = None if self.positions is None else self.positions[at]
        return Graph(self.n, places[self.edge_array], self.directed, labels, spots)

    def subgraph(self, nodes: Iterable[int]) -> Graph:
        """The induced subgraph on `nodes`, renumbered 0.. in the given order."""
        kept = list(nodes)
        for i in kept:
            self._check_node(i)
        if len(set(kept)) != len(kept):
            raise GraphError(f"nodes = {kept} names a node twice; give each node once")
        number = np.full(self.n, -1)
        number[kept] = np.arange(len(kept))
        edges = number[self.edge_array]
        labels = None if self.labels is None else [self.labels[i] for i in kept]
        spots = None if self.positions is None else self.positions[kept]
        return Graph(len(kept), edges[(edges >= 0).all(axis=1)], self.directed, labels, spots)

    def _check_node(self, i: int) -> None:
        if not 0 <= i < self.n:
            raise GraphError(f"there is no node {i}; the nodes are 0..{self.n - 1}")


def _normalized(n: int, edges: Edges, directed: bool) -> IntArray:
    """The edges as a sorted, read-only (E, 2) array without repeats and loops, i < j if undirected."""
    listed = edges if isinstance(edges, np.ndarray) else list(edges)
    try:
        array = np.asarray(listed) if len(listed) else np.empty((0, 2), dtype=np.int64)
        if array.shape[1:] != (2,) or not np.issubdtype(array.dtype, np.integer):
            raise TypeError
    except (ValueError, TypeError):
        raise GraphError("edges must be pairs of node numbers, such as [(0, 1), (1, 2)]") from None
    outside = ((array < 0) | (array >= n)).any(axis=1)
    if outside.any():
        i, j = array[outside][0]
        raise GraphError(f"the edge ({i}, {j}) names a node outside 0..{n - 1}; raise n or renumber the nodes")
    array = array[array[:, 0] != array[:, 1]].astype(np.int64)
    i, j = (array if directed else np.sort(array, axis=1)).T
    keys = np.sort(i * n + j)  # 20 times faster than unique rows
    array = np.stack(np.divmod(keys[np.diff(keys, prepend=-1) > 0], n), axis=1)
    array.flags.writeable = False
    return array


_Arrays = TypeVar("_Arrays", Pattern, Arcs)


def _read_only(arrays: _Arrays) -> _Arrays:
    for array in arrays:
        array.flags.writeable = False
    return arrays
