"""The ends of the spectrum of a weighted Laplacian L(w) = B diag(w) Bᵀ: dense for small graphs, Lanczos for large ones.

Legend: n nodes, E edges; B (n, E) the node-edge incidence matrix.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.mixing.matrix import FloatArray

_DENSE_LIMIT = 400  # above this many nodes, Lanczos iteration finds a few eigenvectors faster


def incidence(graph: Graph) -> sparse.csr_array:
    """B (n, E): column e has 1 at node i and −1 at node j of the edge e = (i, j)."""
    E = len(graph.edge_array)
    entries = graph.edge_array.T.ravel(), np.tile(np.arange(E), 2)
    return sparse.csr_array((np.repeat([1.0, -1.0], E), entries), shape=(graph.n, E))


def laplacian(n: int, edges: IntArray, weights: FloatArray) -> sparse.csr_array:
    """L(w) = Σ_e w_e (e_i − e_j)(e_i − e_j)ᵀ (n, n) of the edges (E, 2) with weights w (E,)."""
    A = sparse.csr_array((weights, tuple(edges.T)), shape=(n, n))
    A = A + A.T
    return sparse.csr_array(sparse.diags_array(A.sum(axis=1)) - A)


def lowest(L: sparse.csr_array, count: int) -> tuple[FloatArray, FloatArray]:
    """λ₂ ≤ λ₃ ≤ … of a Laplacian, at most `count`, and their unit eigenvectors (n, count), all orthogonal to 𝟏."""
    n = L.shape[0]
    count = min(count, n - 1)
    if n <= _DENSE_LIMIT:
        # Adding 𝟏𝟏ᵀ times more than any eigenvalue moves the constant vector to the other end.
        values, vectors = np.linalg.eigh(L.toarray() + (2 * L.diagonal().max() + 1) / n)
        return values[:count], vectors[:, :count]
    from scipy.sparse.linalg import eigsh

    # Inverted around a point just below 0, which separates small eigenvalues that lie close together.
    shift = 1e-4 * float(L.diagonal().mean()) + 1e-300
    values, vectors = eigsh(L.tocsc(), count + 1, sigma=-shift, v0=_start(n))
    order = np.argsort(values)[1:]
    vectors = vectors[:, order] - vectors[:, order].mean(axis=0)
    return values[order], vectors / np.linalg.norm(vectors, axis=0)


def highest(L: sparse.csr_array, count: int) -> tuple[FloatArray, FloatArray]:
    """The largest eigenvalues of a Laplacian, descending, and their unit eigenvectors (n, count)."""
    n = L.shape[0]
    count = min(count, n - 1)
    if n <= _DENSE_LIMIT:
        values, vectors = np.linalg.eigh(L.toarray())
        return values[: -count - 1 : -1], vectors[:, : -count - 1 : -1]
    from scipy.sparse.linalg import eigsh

    values, vectors = eigsh(L, count, which="LA", v0=_start(n), tol=1e-6)
    order = np.argsort(-values)
    return values[order], vectors[:, order]


def largest_off_constant(E: sparse.csr_array) -> float:
    """λ_max(E − J) of a symmetric positive semidefinite E (n, n) with E𝟏 = 𝟏."""
    n = E.shape[0]
    if n <= _DENSE_LIMIT:
        return float(np.linalg.eigvalsh(E.toarray() - 1 / n)[-1])
    from scipy.sparse.linalg import LinearOperator, eigsh

    operator = LinearOperator((n, n), matvec=lambda x: E @ x - x.mean(), dtype=np.float64)
    return float(eigsh(operator, 1, which="LA", v0=_start(n), return_eigenvectors=False, tol=1e-8)[0])


def _start(n: int) -> FloatArray:
    """A fixed start vector, so that the same graph gives the same result."""
    return np.random.Generator(np.random.PCG64(0)).standard_normal(n)
