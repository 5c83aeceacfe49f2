"""A mixing matrix as a checked value: weights on the graph, non-negative, with sums of 1.

`W[i, j]` is the weight that node j gives to what arrives from node i; one gossip step is `W.T @ X` (docs/notation.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from mixwise.errors import MixingError
from mixwise.graphs import Graph

FloatArray = npt.NDArray[np.float64]
Kind: TypeAlias = Literal["doubly", "sender"]

TOLERANCE = 1e-6  # how far a sum of weights may be from 1 in what a user hands over


class MixingMatrix:
    """Weights on the arcs and loops of a graph whose sums are 1; it cannot be built from anything else.

    Args:
        graph: who may talk to whom.
        weights: one weight per entry of `graph.pattern`: the arcs i → j and the loops, sorted by i, then j.
        kind: "doubly": rows and columns sum to 1. "sender": only rows do (each node splits what it sends).
        tolerance: how far a sum may be from 1.
        nodes: the nodes whose rows and columns are known here, all by default; the weights of arcs and loops that touch
            none of them are not known, and stored as 0. Only the sums of these nodes are checked.

    A value: it cannot be changed, and two of them are equal if kind, graph, nodes and weights are.
    """

    graph: Graph
    kind: Kind
    weights: FloatArray  # (A + n,), read-only
    tolerance: float  # not part of the value
    nodes: range

    def __init__(
        self,
        graph: Graph,
        weights: npt.ArrayLike,
        kind: Kind = "doubly",
        tolerance: float = TOLERANCE,
        nodes: range | None = None,
    ) -> None:
        self._set(graph, weights, kind, tolerance, nodes)
        self._check(tolerance)

    def _set(
        self, graph: Graph, weights: npt.ArrayLike, kind: Kind, tolerance: float, nodes: range | None = None
    ) -> None:
        # A copy, so that nobody else can change it; adding 0 makes −0 to 0, which equal values would differ in.
        values = np.asarray(np.array(weights, dtype=np.float64) + 0.0)
        values.flags.writeable = False
        known = range(graph.n) if nodes is None else nodes
        vars(self).update(graph=graph, weights=values, kind=kind, tolerance=tolerance, nodes=known)

    @classmethod
    def _prechecked(cls, graph: Graph, weights: FloatArray, tolerance: float, kind: Kind = "doubly") -> MixingMatrix:
        """A matrix from weights whose signs and sums the caller has just checked; for solvers."""
        matrix = cls.__new__(cls)
        matrix._set(graph, weights, kind, tolerance)
        return matrix

    @classmethod
    def from_dense(
        cls, W: npt.ArrayLike, graph: Graph | None = None, kind: Kind = "doubly", tolerance: float = TOLERANCE
    ) -> MixingMatrix:
        """The checked value of an (n, n) array; without a graph, its non-zero entries are the (directed) graph."""
        dense = np.asarray(W, dtype=np.float64)
        if dense.ndim != 2 or dense.shape[0] != dense.shape[1]:
            raise MixingError(f"a mixing matrix is square, got an array of shape {dense.shape}")
        if graph is None:
            support = dense != 0
            symmetric = bool((support == support.T).all())
            graph = Graph(len(dense), np.argwhere(support), directed=not symmetric)
        if graph.n != len(dense):
            raise MixingError(f"W is {len(dense)} × {len(dense)}, but the graph has {graph.n} nodes")
        pattern = graph.pattern
        off_graph = dense.copy()
        off_graph[pattern.rows, pattern.cols] = 0
        if off_graph.any():
            i, j = np.argwhere(off_graph)[0]
            raise MixingError(
                f"W[{i}, {j}] = {dense[i, j]:.6g}, but node {i} has no edge to node {j}; "
                f"set the entry to 0 or add the edge to the graph"
            )
        return cls(graph, dense[pattern.rows, pattern.cols], kind, tolerance)

    # --- its forms ---
    @property
    def n(self) -> int:
        """How many nodes it mixes."""
        return self.graph.n

    @property
    def whole(self) -> bool:
        """Whether all weights are known here."""
        return self.nodes == range(self.n)

    def need_whole(self, what: str) -> None:
        """An error for what cannot be told from a part of the weights."""
        if not self.whole:
            raise MixingError(
                f"{what} needs all weights, but only those of nodes {self.nodes[0]} to {self.nodes[-1]} of {self.n} "
                f"are known here (solver: local); take weights that every process knows, e.g. solver: auto"
            )

    @cached_property
    def sparse(self) -> csr_array:
        """W as a SciPy CSR array, zeros on the graph included."""
        pattern = self.graph.pattern
        return csr_array((self.weights, pattern.cols, pattern.indptr), shape=(self.n, self.n))

    @cached_property
    def incoming(self) -> csr_array:
        """Wᵀ in CSR: row j lists the weights of what node j hears, senders ascending."""
        pattern = self.graph.pattern
        order = pattern.by_column
        indptr = np.searchsorted(pattern.cols[order], np.arange(self.n + 1))
        weights = self.weights[order]
        weights.flags.writeable = False
        return csr_array((weights, pattern.rows[order], indptr), shape=(self.n, self.n))

    def to_dense(self) -> FloatArray:
        """W as a new (n, n) array."""
        W = np.zeros((self.n, self.n))
        W[self.graph.pattern.rows, self.graph.pattern.cols] = self.weights
        return W

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[np.generic]:
        return self.to_dense().astype(dtype or np.float64)

    def __getitem__(self, entry: tuple[int, int]) -> float:
        i, j = entry
        return float(self.sparse[i, j])

    @cached_property
    def edge_weights(self) -> Mapping[tuple[int, int], float]:
        """{(i, j): W[i, j]} for the arcs with a (known) non-zero weight: the messages of one gossip step."""
        pattern = self.graph.pattern
        sent = (pattern.rows != pattern.cols) & (self.weights != 0)
        return MappingProxyType(
            {
                (int(i), int(j)): float(w)
                for i, j, w in zip(pattern.rows[sent], pattern.cols[sent], self.weights[sent], strict=True)
            }
        )

    @cached_property
    def messages(self) -> int:
        """How many rows travel in one gossip step: arcs with a (known) non-zero weight."""
        pattern = self.graph.pattern
        return int(np.count_nonzero(self.weights[pattern.rows != pattern.cols]))

    @cached_property
    def is_average(self) -> bool:
        """Whether W = J, so that one gossip step gives the mean of all rows to every node."""
        return self.whole and len(self.weights) == self.n**2 and bool(np.ptp(self.weights) == 0)

    @property
    def is_symmetric(self) -> bool:
        """Whether W = Wᵀ, to the last bit."""
        return not (self.sparse - self.sparse.T).count_nonzero()

    def permuted(self, order: npt.ArrayLike) -> MixingMatrix:
        """The same weights with other nodes in their places: node `order[a]` takes the place of node a."""
        self.need_whole("moving the nodes")
        places = np.asarray(order)
        graph = self.graph.permuted(places.tolist())
        in_order = np.lexsort((places[self.graph.pattern.cols], places[self.graph.pattern.rows]))
        return MixingMatrix(graph, self.weights[in_order], self.kind, self.tolerance)

    # --- a value ---
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a mixing matrix cannot be changed, so {name} cannot be set; build another one")

    def __deepcopy__(self, memo: dict[int, object]) -> MixingMatrix:
        return self  # it never changes

    def __reduce__(self) -> tuple[type[MixingMatrix], tuple[object, ...]]:
        # Rebuilt, not copied: a pickled array forgets that it is read-only.
        return MixingMatrix, (self.graph, self.weights, self.kind, self.tolerance, self.nodes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MixingMatrix):
            return NotImplemented
        return (
            (self.kind, self.nodes) == (other.kind, other.nodes)
            and self.graph == other.graph
            and self.weights.tobytes() == other.weights.tobytes()
        )

    def __hash__(self) -> int:
        return hash((self.graph, self.weights.tobytes()))

    def __repr__(self) -> str:
        part = "" if self.whole else f", nodes {self.nodes[0]} to {self.nodes[-1]} known"
        return f"MixingMatrix(n={self.n}, {self.messages} messages per step, kind={self.kind!r}{part})"

    def _repr_svg_(self) -> str | None:
        """A heat map for notebooks; None if its cells would be too small to see."""
        from mixwise.graphs.drawing import svg
        from mixwise.mixing.drawing import MAX_NODES, matrix_figure  # it needs this module

        return svg(matrix_figure(self), f"{self!r}; rows send, columns receive") if self.n <= MAX_NODES else None

    # --- the rules ---
    def _check(self, tolerance: float) -> None:
        pattern, w = self.graph.pattern, self.weights
        if self.kind not in ("doubly", "sender"):
            raise MixingError(f'kind = {self.kind!r}; a mixing matrix is "doubly" or "sender" stochastic')
        if w.shape != pattern.rows.shape:
            raise MixingError(
                f"{w.size} weights for {len(pattern.rows)} entries; give one per arc and one per loop, "
                f"in the order of graph.pattern"
            )
        # NaN fails every comparison, so both tests are written as "not (good)".
        if not w.min(initial=0.0) >= 0 or not w.max(initial=0.0) <= 1 + tolerance:
            # A negative weight on an edge makes a loop too large: name the edge.
            e = int(np.argmax(w < 0) if (w < 0).any() else np.argmax(~(w <= 1 + tolerance)))
            raise MixingError(
                f"W[{pattern.rows[e]}, {pattern.cols[e]}] = {w[e]:.6g}; weights lie between 0 and 1; "
                f"clip them and normalize the sums, or take a builder such as metropolis_hastings(graph)"
            )
        if not self.whole:
            self._check_part()
        self._check_sums("row", row_sums(self.graph, w), tolerance)
        if self.kind == "doubly":
            self._check_sums("column", column_sums(self.graph, w), tolerance)

    def _check_part(self) -> None:
        nodes, pattern = self.nodes, self.graph.pattern
        if nodes.step != 1 or not 0 <= nodes.start < nodes.stop <= self.n:
            raise MixingError(f"nodes = {nodes}; the known nodes are a range of one or more of 0..{self.n - 1}")
        known = [(ends >= nodes.start) & (ends < nodes.stop) for ends in (pattern.rows, pattern.cols)]
        strange = np.flatnonzero(~(known[0] | known[1]) & (self.weights != 0))
        if len(strange):
            e = int(strange[0])
            raise MixingError(
                f"W[{pattern.rows[e]}, {pattern.cols[e]}] = {self.weights[e]:.6g}, but only the weights of nodes "
                f"{nodes[0]} to {nodes[-1]} are known here; set the others to 0"
            )

    def _check_sums(self, name: str, sums: FloatArray, tolerance: float) -> None:
        error = np.abs(sums - 1)[self.nodes.start : self.nodes.stop]
        worst = self.nodes[int(error.argmax())]
        if error.max() > tolerance:
            where = (self.graph.pattern.rows if name == "row" else self.graph.pattern.cols) == worst
            e = int(np.flatnonzero(where)[self.weights[where].argmax()])
            remedy = (
                "a loop takes what is left of its row: from_edge_weights(graph, weights)"
                if name == "row"
                else 'use symmetric weights, or kind="sender" if only rows should sum to 1'
            )
            raise MixingError(
                f"{name} {worst} of W sums to {sums[worst]:.9g}, expected 1 within {tolerance:g} "
                f"(its largest entry is W[{self.graph.pattern.rows[e]}, {self.graph.pattern.cols[e]}] "
                f"= {self.weights[e]:.6g}); {remedy}"
            )


def row_sums(graph: Graph, weights: FloatArray) -> FloatArray:
    """Σ_j W[i, j] of weights in the order of `graph.pattern`; no row is empty, since every node has its loop."""
    return np.add.reduceat(weights, graph.pattern.indptr[:-1])


def column_sums(graph: Graph, weights: FloatArray) -> FloatArray:
    """Σ_i W[i, j] of weights in the order of `graph.pattern`."""
    return np.bincount(graph.pattern.cols, weights=weights, minlength=graph.n).astype(np.float64, copy=False)
