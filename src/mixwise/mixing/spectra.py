"""The ends of the spectrum of a weighted Laplacian L = B diag(w) Bᵀ: dense for small graphs, sparse for large ones."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from mixwise.graphs.graph import IntArray
from mixwise.mixing.matrix import FloatArray

_DENSE_LIMIT = 400  # above this many nodes a few eigenvectors are found faster by Lanczos iteration


def laplacian(n: int, edges: IntArray, weights: FloatArray) -> sparse.csr_array:
    """Σ_e w_e (e_i − e_j)(e_i − e_j)ᵀ over the edges (E, 2), as a SciPy CSR array."""
    i, j = edges.T
    A = sparse.csr_array((weights, (i, j)), shape=(n, n))
    A = A + A.T
    return sparse.csr_array(sparse.diags_array(A.sum(axis=1)) - A)


def lowest(L: sparse.csr_array, count: int) -> tuple[FloatArray, FloatArray]:
    """λ_2 ≤ λ_3 ≤ … of a Laplacian, `count` of them at most, and unit eigenvectors (n, count), all orthogonal to 𝟏."""
    n = L.shape[0]
    count = min(count, n - 1)
    if n <= _DENSE_LIMIT:
        # 𝟏𝟏ᵀ times more than any eigenvalue moves the constant vector to the other end.
        values, vectors = np.linalg.eigh(L.toarray() + (2 * L.diagonal().max() + 1) / n)
        return values[:count], vectors[:, :count]
    from scipy.sparse.linalg import eigsh

    # Inverted around a point just below 0, so that small eigenvalues lying close together are far apart.
    shift = 1e-4 * float(L.diagonal().mean()) + 1e-300
    values, vectors = eigsh(L.tocsc(), count + 1, sigma=-shift, v0=_start(n))
    order = np.argsort(values)[1:]
    vectors = vectors[:, order] - vectors[:, order].mean(axis=0)
    return values[order], vectors / np.linalg.norm(vectors, axis=0)


def highest(L: sparse.csr_array, count: int) -> tuple[FloatArray, FloatArray]:
    """The largest eigenvalues of a Laplacian, largest first, and unit eigenvectors (n, count)."""
    n = L.shape[0]
    count = min(count, n - 1)
    if n <= _DENSE_LIMIT:
        values, vectors = np.linalg.eigh(L.toarray())
        return values[: -count - 1 : -1], vectors[:, : -count - 1 : -1]
    from scipy.sparse.linalg import eigsh

    values, vectors = eigsh(L, count, which="LA", v0=_start(n), tol=1e-6)
    order = np.argsort(-values)
    return values[order], vectors[:, order]


def _start(n: int) -> FloatArray:
    """A fixed start, so that the same graph gives the same figures."""
    return np.random.Generator(np.random.PCG64(0)).standard_normal(n)
