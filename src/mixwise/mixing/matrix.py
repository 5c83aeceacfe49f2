"""The mixing matrix, as a validated value: non-negative weights on a graph whose rows and columns sum to 1.

`W[i, j]` is the weight that node j gives to what arrives from node i; one gossip step is `W.T @ X` (docs/notation.md).

Legend: n nodes, A arcs; weights (A + n,) are in the order of `graph.pattern`: arcs and loops sorted by (i, j).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.graphs.spec import GraphLike, as_graph
from mixwise.mixing.arrays import as_float64

FloatArray: TypeAlias = npt.NDArray[np.float64]
Kind: TypeAlias = Literal["doubly", "sender"]

TOLERANCE = 1e-6  # how far from 1 the sums of a user's weights may be
_LOOSEST = 0.1  # of tolerances
_REMEDIES = {
    "row": "a loop takes what is left of its row: from_edge_weights(graph, weights)",
    "column": 'use symmetric weights, or kind="sender" if only rows should sum to 1',
}


@dataclass(frozen=True, eq=False, repr=False)
class MixingMatrix:
    """Non-negative weights on the arcs and loops of a graph whose sums are 1, validated on construction.

        W ≥ 0,  W𝟏 = 𝟏,  Wᵀ𝟏 = 𝟏 unless kind="sender",  W[i, j] = 0 where i has no edge to j

    A process may know only the rows and columns of some `nodes` (solver: local). The weights between other nodes are
    then stored as 0, and only the sums of `nodes` are checked.

    Args:
        graph: the communication graph.
        weights: (A + n,), one weight per entry of `graph.pattern`.
        kind: "doubly": rows and columns sum to 1. "sender": only rows do (each node splits what it sends).
        tolerance: how far from 1 a sum may be; not part of the value.
        nodes: the nodes whose rows and columns are known; all by default.

    Matrices are immutable; two are equal if kind, graph, nodes and weights are.
    """

    graph: Graph
    weights: FloatArray  # read-only
    kind: Kind
    tolerance: float
    nodes: range

    def __init__(
        self,
        graph: GraphLike,
        weights: npt.ArrayLike,
        kind: Kind = "doubly",
        tolerance: float = TOLERANCE,
        nodes: range | None = None,
    ) -> None:
        graph = as_graph(graph)
        self._set(graph, weights, kind, tolerance, range(graph.n) if nodes is None else nodes)
        self._check()

    def _set(self, graph: Graph, weights: npt.ArrayLike, kind: Kind, tolerance: float, nodes: range) -> None:
        # A copy, so that it cannot be changed elsewhere; adding 0 turns −0 into 0, whose bits would differ.
        values = np.asarray(as_float64(weights, "weights") + 0.0)
        values.flags.writeable = False
        vars(self).update(graph=graph, weights=values, kind=kind, tolerance=tolerance, nodes=nodes)

    @classmethod
    def _prechecked(cls, graph: Graph, weights: FloatArray, kind: Kind, tolerance: float) -> MixingMatrix:
        """The matrix of weights that the calling solver has just checked for signs and sums."""
        matrix = cls.__new__(cls)
        matrix._set(graph, weights, kind, tolerance, range(graph.n))
        return matrix

    @classmethod
    def from_dense(
        cls, W: npt.ArrayLike, graph: GraphLike | None = None, kind: Kind = "doubly", tolerance: float = TOLERANCE
    ) -> MixingMatrix:
        """The mixing matrix of an (n, n) array; the graph defaults to that of its non-zero entries."""
        dense = as_float64(W, "W")
        if dense.ndim != 2 or dense.shape[0] != dense.shape[1]:
            raise MixingError(f"a mixing matrix is square, got an array of shape {dense.shape}")
        if graph is None:
            support = dense != 0
            graph = Graph(len(dense), np.argwhere(support), directed=not (support == support.T).all())
        graph = as_graph(graph)
        if graph.n != len(dense):
            raise MixingError(f"W is {len(dense)} × {len(dense)}, but the graph has {graph.n} nodes")
        off_graph = dense.copy()
        off_graph[graph.pattern.rows, graph.pattern.cols] = 0
        if off_graph.any():
            i, j = np.argwhere(off_graph)[0]
            entry = f"W[{i}, {j}] = {dense[i, j]:.6g}, but node {i} has no edge to node {j}"
            raise MixingError(f"{entry}; set the entry to 0 or add the edge to the graph")
        return cls(graph, dense[graph.pattern.rows, graph.pattern.cols], kind, tolerance)

    # --- the rows and columns of some nodes ---
    def restricted_to(self, nodes: range) -> MixingMatrix:
        """The same matrix as known to the owner of `nodes`: their rows and columns."""
        weights = np.zeros_like(self.weights)
        for entries in entries_of(self.graph, nodes):
            weights[entries] = self.weights[entries]
        return MixingMatrix(self.graph, weights, self.kind, self.tolerance, nodes)

    @property
    def whole(self) -> bool:
        """Whether all weights are known."""
        return self.nodes == range(self.n)

    def need_whole(self, what: str) -> None:
        """Raise `MixingError` unless all weights are known; `what` names the quantity that needs them."""
        if not self.whole:
            raise MixingError(
                f"{what} needs all weights, but only those of nodes {self.nodes[0]} to {self.nodes[-1]} of {self.n} "
                f"are known here (solver: local); use weights that every process knows, e.g. solver: auto"
            )

    # --- other forms ---
    @property
    def n(self) -> int:
        """The number of nodes."""
        return self.graph.n

    @cached_property
    def sparse(self) -> csr_array:
        """W as a SciPy CSR array, including zeros on the graph."""
        pattern = self.graph.pattern
        return csr_array((self.weights, pattern.cols, pattern.indptr), shape=(self.n, self.n))

    @cached_property
    def incoming(self) -> csr_array:
        """Wᵀ in CSR: row j lists the weights of what node j hears, senders ascending."""
        pattern = self.graph.pattern
        weights = self.weights[pattern.by_column]
        weights.flags.writeable = False
        indptr = np.searchsorted(pattern.cols[pattern.by_column], np.arange(self.n + 1))
        return csr_array((weights, pattern.rows[pattern.by_column], indptr), shape=(self.n, self.n))

    def to_dense(self) -> FloatArray:
        """W as a new (n, n) array."""
        W: FloatArray = self.sparse.toarray()
        return W

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[np.generic]:
        return self.to_dense().astype(dtype or np.float64)

    def __getitem__(self, entry: tuple[int, int]) -> float:
        return float(self.sparse[entry])

    @cached_property
    def edge_weights(self) -> Mapping[tuple[int, int], float]:
        """{(i, j): W[i, j]} for the arcs with a (known) non-zero weight: the messages of one gossip step."""
        pattern = self.graph.pattern
        sent = (pattern.rows != pattern.cols) & (self.weights != 0)
        arcs = zip(pattern.rows[sent].tolist(), pattern.cols[sent].tolist(), strict=True)
        return MappingProxyType(dict(zip(arcs, self.weights[sent].tolist(), strict=True)))

    @cached_property
    def messages(self) -> int:
        """How many rows travel in one gossip step: the arcs with a (known) non-zero weight."""
        return int(np.count_nonzero(self.weights[self.graph.pattern.rows != self.graph.pattern.cols]))

    @cached_property
    def is_average(self) -> bool:
        """Whether W = J, so that one gossip step averages all rows."""
        return self.whole and len(self.weights) == self.n**2 and bool(np.ptp(self.weights) == 0)

    @property
    def is_symmetric(self) -> bool:
        """Whether W = Wᵀ, bit for bit."""
        return not (self.sparse - self.sparse.T).count_nonzero()

    def permuted(self, order: npt.ArrayLike) -> MixingMatrix:
        """The same weights with the nodes moved: node `order[a]` takes the place of node a."""
        self.need_whole("permuting the nodes")
        places = np.asarray(order)
        graph, pattern = self.graph.permuted(places.tolist()), self.graph.pattern
        in_order = np.lexsort((places[pattern.cols], places[pattern.rows]))
        return MixingMatrix(graph, self.weights[in_order], self.kind, self.tolerance)

    # --- value semantics ---
    def __deepcopy__(self, memo: dict[int, object]) -> MixingMatrix:
        return self

    def __reduce__(self) -> tuple[type[MixingMatrix], tuple[object, ...]]:
        # A pickled array loses its read-only flag.
        return MixingMatrix, (self.graph, self.weights, self.kind, self.tolerance, self.nodes)

    @property
    def _key(self) -> tuple[Kind, range, Graph, bytes]:
        return self.kind, self.nodes, self.graph, self.weights.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MixingMatrix) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        part = "" if self.whole else f", nodes {self.nodes[0]} to {self.nodes[-1]} known"
        return f"MixingMatrix(n={self.n}, {self.messages} messages per step, kind={self.kind!r}{part})"

    def _repr_svg_(self) -> str | None:
        """A heat map for notebooks; None if its cells would be too small to see."""
        from mixwise.graphs.drawing import MAX_MATRIX, matrix_figure, svg  # slow to import

        if self.n > MAX_MATRIX:
            return None
        return svg(matrix_figure(self.to_dense()), f"{self!r}; rows send, columns receive")

    # --- validation ---
    def _check(self) -> None:
        pattern, w = self.graph.pattern, self.weights
        check_kind(self.kind)
        if not 0 <= self.tolerance <= _LOOSEST:  # NaN fails every comparison
            raise MixingError(f"tolerance = {self.tolerance}; how far from 1 a sum may be lies in [0, {_LOOSEST}]")
        if w.shape != pattern.rows.shape:
            raise MixingError(
                f"{w.size} weights for {len(pattern.rows)} entries; give one per entry of graph.pattern, or the whole "
                f"(n, n) array: MixingMatrix.from_dense(W, graph)"
            )
        highest = 1 + self.tolerance
        if not (w.min(initial=0.0) >= 0 and w.max(initial=0.0) <= highest):  # NaN fails every comparison
            e = int(np.argmax(w < 0) or np.argmax(~((w >= 0) & (w <= highest))))  # a negative weight enlarges a loop
            remedy = "clip them and normalize the sums, or use a builder such as metropolis_hastings(graph)"
            raise MixingError(f"{self._entry(e)}; weights lie between 0 and 1; {remedy}")
        if not self.whole:
            self._check_part()
        self._check_sums("row", pattern.rows, row_sums(self.graph, w))
        if self.kind == "doubly":
            self._check_sums("column", pattern.cols, column_sums(self.graph, w))

    def _check_part(self) -> None:
        nodes, unknown = self.nodes, self.weights != 0
        if nodes.step != 1 or not 0 <= nodes.start < nodes.stop <= self.n:
            raise MixingError(f"nodes = {nodes}; the known nodes are a range of one or more of 0..{self.n - 1}")
        for entries in entries_of(self.graph, nodes):
            unknown[entries] = False
        if unknown.any():
            only = f"only the weights of nodes {nodes[0]} to {nodes[-1]} are known here"
            raise MixingError(f"{self._entry(int(unknown.argmax()))}, but {only}; set the others to 0")

    def _check_sums(self, name: str, lines: IntArray, sums: FloatArray) -> None:
        error = np.abs(sums - 1)[self.nodes.start : self.nodes.stop]
        if error.max() > self.tolerance:
            worst = self.nodes[int(error.argmax())]
            e = int(np.argmax(np.where(lines == worst, self.weights, -1)))
            found = f"{name} {worst} of W sums to {sums[worst]:.9g}, expected 1 within {self.tolerance:g}"
            raise MixingError(f"{found} (its largest entry is {self._entry(e)}); {_REMEDIES[name]}")

    def _entry(self, e: int) -> str:
        return f"W[{self.graph.pattern.rows[e]}, {self.graph.pattern.cols[e]}] = {self.weights[e]:.6g}"


def check_kind(kind: str) -> None:
    """Raise `MixingError` unless weights can be stochastic in this way."""
    if kind not in ("doubly", "sender"):
        raise MixingError(f'kind = {kind!r}; a mixing matrix is "doubly" or "sender" stochastic')


def entries_of(graph: Graph, nodes: range) -> tuple[IntArray, IntArray]:
    """The positions in `graph.pattern` of the rows of `nodes`, sorted by (i, j), and of their columns, by (j, i)."""
    pattern = graph.pattern
    first, last = np.searchsorted(pattern.cols[pattern.by_column], [nodes.start, nodes.stop])
    return np.arange(pattern.indptr[nodes.start], pattern.indptr[nodes.stop]), pattern.by_column[first:last]


def row_sums(graph: Graph, weights: FloatArray) -> FloatArray:
    """Σ_j W[i, j] (n,); no row is empty, because every node has its loop."""
    return np.add.reduceat(weights, graph.pattern.indptr[:-1])


def column_sums(graph: Graph, weights: FloatArray) -> FloatArray:
    """Σ_i W[i, j] (n,)."""
    return np.bincount(graph.pattern.cols, weights=weights, minlength=graph.n).astype(np.float64, copy=False)
