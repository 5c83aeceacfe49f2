"""Graphs from edge lists, networkx graphs and adjacency matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from mixwise.errors import GraphError
from mixwise.graphs.graph import Edges, Graph, IntArray

if TYPE_CHECKING:
    import networkx
    import torch


def from_edges(edges: Edges, n: int | None = None, directed: bool = False) -> Graph:
    """The graph with these edges; n defaults to the largest node number plus one.

    >>> from_edges([(0, 1), (1, 2)]) == Graph(3, [(0, 1), (1, 2)])
    True
    """
    listed = edges if isinstance(edges, np.ndarray) else list(edges)
    if n is not None:
        return Graph(n, listed, directed)
    if len(listed) == 0:
        raise GraphError("no edges and no n; pass the number of nodes: from_edges([], n=…)")
    try:
        last = int(np.max(listed))
    except (ValueError, TypeError):
        last = 0  # not pairs of numbers, which Graph reports
    return Graph(max(last, 0) + 1, listed, directed)


def from_networkx(g: networkx.Graph[Any]) -> Graph:
    """A networkx graph, directed or not, with its nodes in its order and `str(node)` as labels.

    Parallel edges are merged and loops are dropped.
    """
    if not hasattr(g, "is_directed"):
        raise GraphError(f"expected a networkx graph, got {type(g).__name__}; for pairs, use from_edges(edges)")
    number = {node: i for i, node in enumerate(g)}
    edges = [(number[u], number[v]) for u, v in g.edges()]
    return Graph(len(number), edges, directed=g.is_directed(), labels=[str(node) for node in g])


def from_adjacency(
    A: npt.ArrayLike | sparse.sparray | sparse.spmatrix | torch.Tensor, directed: bool | None = None
) -> Graph:
    """The graph of the non-zero entries of A (n, n), where A[i, j] ≠ 0 means that i may send to j.

    Args:
        A: a NumPy, SciPy or torch matrix, dense or sparse; the diagonal is ignored.
        directed: defaults to False if the non-zero pattern is symmetric, else to True.
    """
    n, nonzero = _nonzero_entries(A)
    arcs = Graph(n, nonzero, directed=True)
    one_way = (arcs.adjacency - arcs.adjacency.T).nonzero()
    if directed or (directed is None and len(one_way[0])):
        return arcs
    if len(one_way[0]):
        i, j = one_way[0][0], one_way[1][0]
        raise GraphError(
            f"only one of A[{i}, {j}] and A[{j}, {i}] is zero, but an undirected graph has both or none; "
            f"pass directed=True, or A + A.T"
        )
    return Graph(n, nonzero)


def _nonzero_entries(A: Any) -> tuple[int, IntArray]:
    """n and the positions (E, 2) of the non-zero entries of a square matrix, checked."""
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
    positions = np.stack([C.row, C.col], axis=1).astype(np.int64)
    bad = ~np.isfinite(C.data)
    if bad.any():
        i, j = positions[bad][0]
        raise GraphError(f"A[{i}, {j}] = {C.data[bad][0]}; entries are finite numbers, 0 where there is no edge")
    return A.shape[0], positions[C.data != 0]
