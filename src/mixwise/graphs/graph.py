"""A communication graph as a value: who may talk to whom.

Legend: n nodes 0..n-1; an edge {i, j} is stored once (i < j), or as the arc i → j ("i sends to j") if directed.
Self-loops are implied, since a node always hears itself, and are never stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse

from mixwise.errors import GraphError

IntArray = npt.NDArray[np.int64]


class Pattern(NamedTuple):
    """The entries a mixing matrix may have: all arcs i → j and all loops, sorted by row i, then column j (CSR)."""

    rows: IntArray  # (A + n,)  the sender i
    cols: IntArray  # (A + n,)  the receiver j
    indptr: IntArray  # (n + 1,)  where each row starts
    by_column: IntArray  # (A + n,)  the order of the same entries sorted by column, then row


class Arcs(NamedTuple):
    """All arcs i → j without the loops, sorted by (i, j); an undirected edge is two of them."""

    senders: IntArray  # (A,)  i
    receivers: IntArray  # (A,)  j
    by_receiver: IntArray  # (A,)  the order of the same arcs sorted by (j, i): as they arrive


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """An immutable, hashable graph on nodes 0..n-1; undirected unless `directed=True`.

    >>> g = Graph(4, [(0, 1), (1, 2), (2, 3)])
    >>> g.degrees, g.diameter, g.neighbors(1)
    ((1, 2, 2, 1), 3, (0, 2))
    >>> g == Graph(4, [(3, 2), (1, 0), (2, 1), (2, 1)])
    True
    """

    n: int
    edge_array: IntArray  # (E, 2), sorted, each edge once
    directed: bool = False
    labels: tuple[str, ...] | None = None  # names from a file; not part of the value

    def __init__(
        self,
        n: int,
        edges: Iterable[tuple[int, int]] | npt.NDArray[np.integer],
        directed: bool = False,
        labels: Sequence[str] | None = None,
    ) -> None:
        if n < 1 or n != int(n):
            raise GraphError(f"a graph needs a whole number of nodes, at least 1, got n = {n}")
        if labels is not None and len(labels) != n:
            raise GraphError(f"{len(labels)} labels for {n} nodes; give one label per node or none")
        object.__setattr__(self, "n", int(n))
        object.__setattr__(self, "edge_array", _normalized(int(n), edges, directed))
        object.__setattr__(self, "directed", bool(directed))
        object.__setattr__(self, "labels", None if labels is None else tuple(str(label) for label in labels))

    # --- a value ---
    @cached_property
    def _key(self) -> tuple[int, bool, bytes]:
        return self.n, self.directed, self.edge_array.tobytes()

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Graph) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __deepcopy__(self, memo: dict[int, object]) -> Graph:
        return self  # it never changes

    def __reduce__(self) -> tuple[type[Graph], tuple[object, ...]]:
        # Rebuilt, not copied: a cached hash holds in one process only, and a pickled array forgets it is read-only.
        return Graph, (self.n, self.edge_array, self.directed, self.labels)

    def __repr__(self) -> str:
        kind = "directed, " if self.directed else ""
        return f"Graph(n={self.n}, {kind}{len(self.edge_array)} {'arcs' if self.directed else 'edges'})"

    def _repr_svg_(self) -> str | None:
        """A picture for notebooks; None if the graph is too large for one."""
        from mixwise.graphs.drawing import graph_figure, is_drawable, svg  # it needs this module

        return svg(graph_figure(self), repr(self)) if is_drawable(self) else None

    # --- who is next to whom ---
    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Each edge once, sorted: (i, j) with i < j, or the arc i → j if directed."""
        return tuple((int(i), int(j)) for i, j in self.edge_array)

    @cached_property
    def pattern(self) -> Pattern:
        """Where a mixing matrix on this graph may be non-zero."""
        loops = np.arange(self.n)
        i, j = self.edge_array.T
        rows = np.concatenate([i, loops] if self.directed else [i, j, loops])
        cols = np.concatenate([j, loops] if self.directed else [j, i, loops])
        order = np.lexsort((cols, rows))
        rows, cols = rows[order], cols[order]
        indptr = np.searchsorted(rows, np.arange(self.n + 1))
        pattern = Pattern(rows, cols, indptr, np.lexsort((rows, cols)))
        for array in pattern:
            array.flags.writeable = False
        return pattern

    @cached_property
    def arcs(self) -> Arcs:
        """The ways that a message may take."""
        keep = self.pattern.rows != self.pattern.cols
        senders, receivers = self.pattern.rows[keep], self.pattern.cols[keep]
        arcs = Arcs(senders, receivers, np.lexsort((senders, receivers)))
        for array in arcs:
            array.flags.writeable = False
        return arcs

    @cached_property
    def adjacency(self) -> sparse.csr_array:
        """(n, n) CSR matrix of 0 and 1, without loops; entry (i, j) if i may send to j."""
        senders, receivers, _ = self.arcs
        return sparse.csr_array((np.ones(len(senders)), (senders, receivers)), shape=(self.n, self.n))

    def neighbors(self, i: int) -> tuple[int, ...]:
        """The nodes that i may send to, ascending, without i itself."""
        self._check_node(i)
        row = self.pattern.cols[self.pattern.indptr[i] : self.pattern.indptr[i + 1]]
        return tuple(int(j) for j in row if j != i)

    def in_neighbors(self, j: int) -> tuple[int, ...]:
        """The nodes that j may hear from, ascending, without j itself; `neighbors(j)` if undirected."""
        if not self.directed:
            return self.neighbors(j)
        self._check_node(j)
        return tuple(int(i) for i in self.edge_array[self.edge_array[:, 1] == j, 0])

    @cached_property
    def degrees(self) -> tuple[int, ...]:
        """How many nodes each node may send to, itself not counted."""
        return tuple(int(count) - 1 for count in np.diff(self.pattern.indptr))

    @cached_property
    def in_degrees(self) -> tuple[int, ...]:
        """How many nodes each node may hear from, itself not counted."""
        return tuple(int(count) - 1 for count in np.bincount(self.pattern.cols, minlength=self.n))

    @property
    def is_regular(self) -> bool:
        """Whether all nodes send to, and hear from, the same number of nodes."""
        return len(set(self.degrees) | set(self.in_degrees)) == 1

    # --- paths ---
    @cached_property
    def components(self) -> tuple[tuple[int, ...], ...]:
        """The (strongly) connected components, each ascending, ordered by their smallest node."""
        from scipy.sparse import csgraph  # brings all of scipy.linalg, which most users of a graph do not need

        _, names = csgraph.connected_components(self.adjacency, directed=self.directed, connection="strong")
        groups: dict[int, list[int]] = {}
        for node, name in enumerate(names):
            groups.setdefault(int(name), []).append(node)
        return tuple(sorted(tuple(group) for group in groups.values()))

    @property
    def is_connected(self) -> bool:
        """Whether every node reaches every other (along the arcs, if directed)."""
        return len(self.components) == 1

    @cached_property
    def diameter(self) -> int:
        """The most hops between any two nodes."""
        if not self.is_connected:
            raise GraphError(
                f"the graph has {len(self.components)} components, so its diameter is infinite; "
                f"take one of them: graph.subgraph(max(graph.components, key=len))"
            )
        from scipy.sparse import csgraph

        longest = 0
        for start in range(0, self.n, 256):  # blocks of sources keep the distance table small
            sources = np.arange(start, min(start + 256, self.n))
            hops = csgraph.dijkstra(self.adjacency, indices=sources, unweighted=True)
            longest = max(longest, int(hops.max()))
        return longest

    # --- new graphs from this one ---
    def permuted(self, order: Sequence[int]) -> Graph:
        """The graph with other nodes in its places: node `order[a]` takes the place of node a.

        >>> Graph(3, [(0, 1), (1, 2)]).permuted([1, 0, 2]).edges
        ((0, 1), (0, 2))
        """
        places = np.asarray(order)
        if sorted(places.tolist()) != list(range(self.n)):
            raise GraphError(f"order = {list(order)} is not a permutation of the nodes 0..{self.n - 1}")
        labels = None
        if self.labels is not None:  # a label names a place, so it goes with the place
            labels = [self.labels[a] for a in np.argsort(places)]
        return Graph(self.n, places[self.edge_array], self.directed, labels)

    def subgraph(self, nodes: Iterable[int]) -> Graph:
        """The induced graph on `nodes`, renumbered 0.. in the order given."""
        kept = list(nodes)
        for i in kept:
            self._check_node(i)
        if len(set(kept)) != len(kept):
            raise GraphError(f"nodes = {kept} names a node twice; give each node once")
        new_name = np.full(self.n, -1)
        new_name[kept] = np.arange(len(kept))
        edges = new_name[self.edge_array]
        labels = None if self.labels is None else [self.labels[i] for i in kept]
        return Graph(len(kept), edges[(edges >= 0).all(axis=1)], self.directed, labels)

    def _check_node(self, i: int) -> None:
        if not 0 <= i < self.n:
            raise GraphError(f"there is no node {i}; the nodes are 0..{self.n - 1}")


def _normalized(n: int, edges: Iterable[tuple[int, int]] | npt.NDArray[np.integer], directed: bool) -> IntArray:
    """Edges as a sorted, read-only (E, 2) array without repeats, loops dropped, i < j if undirected."""
    listed = edges if isinstance(edges, np.ndarray) else list(edges)
    try:
        array = np.asarray(listed) if len(listed) else np.empty((0, 2), dtype=np.int64)
        if array.shape[1:] != (2,) or not np.issubdtype(array.dtype, np.integer):
            raise TypeError
    except (ValueError, TypeError):
        raise GraphError("edges must be pairs of node numbers, such as [(0, 1), (1, 2)]") from None
    outside = (array < 0) | (array >= n)
    if outside.any():
        i, j = array[outside.any(axis=1)][0]
        raise GraphError(f"the edge ({i}, {j}) names a node outside 0..{n - 1}; raise n or renumber the nodes")
    array = array[array[:, 0] != array[:, 1]].astype(np.int64)
    if not directed:
        array = np.sort(array, axis=1)
    array = np.unique(array, axis=0)
    array.flags.writeable = False
    return array
