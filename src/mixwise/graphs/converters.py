"""Graphs from what other tools hold: pairs, networkx graphs, adjacency matrices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from mixwise.errors import GraphError
from mixwise.graphs.graph import Graph, IntArray

if TYPE_CHECKING:
    import networkx
    import torch


def from_edges(
    edges: Iterable[tuple[int, int]] | npt.NDArray[np.integer], n: int | None = None, directed: bool = False
) -> Graph:
    """The graph of these edges; without n, the largest number named is the last node.

    >>> from_edges([(0, 1), (1, 2)]) == Graph(3, [(0, 1), (1, 2)])
    True
    """
    listed = edges if isinstance(edges, np.ndarray) else list(edges)
    if n is not None:
        return Graph(n, listed, directed)
    if len(listed) == 0:
        raise GraphError("no edges and no n; say how many nodes there are: from_edges([], n=…)")
    try:
        last = int(np.max(listed))
    except (ValueError, TypeError):
        last = 0  # not pairs of numbers: Graph says what is wrong
    return Graph(max(last, 0) + 1, listed, directed)


def from_networkx(g: networkx.Graph[Any]) -> Graph:
    """A networkx graph, directed or not, with its nodes in its order and `str(node)` as labels.

    Parallel edges become one and loops are dropped.
    """
    if not hasattr(g, "is_directed"):
        raise GraphError(f"expected a networkx graph, got {type(g).__name__}; for pairs, use from_edges(edges)")
    number = {node: a for a, node in enumerate(g)}
    edges = [(number[u], number[v]) for u, v in g.edges()]
    return Graph(len(number), edges, directed=g.is_directed(), labels=[str(node) for node in g])


def from_adjacency(
    A: npt.ArrayLike | sparse.sparray | sparse.spmatrix | torch.Tensor, directed: bool | None = None
) -> Graph:
    """The graph of the non-zero entries of A (n, n), where A[i, j] means that i may send to j; the diagonal is ignored.

    Args:
        A: NumPy, SciPy or torch, dense or sparse.
        directed: without it, undirected if the non-zero entries lie symmetrically.
    """
    n, nonzero = _entries(A)
    arcs = Graph(n, nonzero, directed=True)
    if directed:
        return arcs
    one_way = arcs.adjacency - arcs.adjacency.T
    if not one_way.count_nonzero():
        return Graph(n, nonzero)
    if directed is None:
        return arcs
    i, j = (int(found[0]) for found in one_way.nonzero())
    raise GraphError(
        f"A[{i}, {j}] and A[{j}, {i}]: one is zero, the other is not, but an undirected graph has both; "
        f"pass directed=True, or A + A.T"
    )


def _entries(A: Any) -> tuple[int, IntArray]:
    """n and the places (E, 2) of the non-zero entries of a square array, checked."""
    if hasattr(A, "detach"):  # a torch tensor, dense or sparse
        T = A.detach().cpu().to_sparse().coalesce()
        A = sparse.coo_array((T.values().double().numpy(), tuple(T.indices().numpy())), shape=tuple(T.shape))
    try:
        A = A if sparse.issparse(A) else np.asarray(A, dtype=np.float64)
    except (ValueError, TypeError):
        raise GraphError("A is not an array of numbers; give n rows of n numbers, 0 where there is no edge") from None
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise GraphError(f"an adjacency matrix is square, got an array of shape {A.shape}; for pairs, use from_edges")
    C = sparse.coo_array(A, copy=True)
    C.sum_duplicates()
    places = np.stack([C.row, C.col], axis=1).astype(np.int64)
    bad = ~np.isfinite(C.data)
    if bad.any():
        i, j = places[bad][0]
        raise GraphError(f"A[{i}, {j}] = {C.data[bad][0]}; entries are finite numbers, 0 where there is no edge")
    return A.shape[0], places[C.data != 0]
