"""Metrics of the paper: the disagreement between nodes, and how much of it a mixing matrix removes.

Legend: W (n, n) a MixingMatrix or an array; G (n, d) one row per node, NumPy or torch; Ḡ its mean row; J = 𝟏𝟏ᵀ/n.
Everything is computed in float64, one block of columns at a time, so that large G are never copied as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.mixing.arrays import Rows, as_float64, as_rows, check_finite, column_blocks
from mixwise.mixing.matrix import FloatArray, MixingMatrix

Weights: TypeAlias = MixingMatrix | npt.NDArray[Any] | torch.Tensor

_PRODUCTS = 1 << 16  # numbers that are multiplied and summed at a time, if a row has fewer: fewer calls
_DENSE_LIMIT = 1500  # above this many nodes, the norm of W − J is found by Lanczos iteration
_DENSE_LAPLACIAN = 400  # above this many nodes, Lanczos iteration finds a few of its eigenvectors faster
_overflow = np.errstate(over="ignore", invalid="ignore")  # the error names the row


@_overflow
def gradient_mixing_error(G: Rows, W: Weights) -> float:
    """GME ‖Wᵀ(G − Ḡ)‖²_F: what one gossip step leaves of the gradients' disagreement (paper, GME-exact)."""
    Wt = W.incoming if isinstance(W, MixingMatrix) and W.whole and W.n > 64 else _dense(W).T
    if len(as_rows(G)) != Wt.shape[0]:
        raise MixingError(f"{len(G)} rows for a mixing matrix of {Wt.shape[0]} nodes; pass one row per node")
    error = float(sum(np.square(Wt @ (B - B.mean(0))).sum() for B in column_blocks(G)))
    check_finite(error, G)
    return error


def relative_heterogeneity(G: Rows, W: Weights) -> float:
    """ζ′² = GME / n: the heterogeneity that is left after mixing with W (paper, eq. hat-zeta-prime)."""
    return gradient_mixing_error(G, W) / len(G)


@_overflow
def heterogeneity(G: Rows) -> float:
    """ζ² = (1/n) ‖G − Ḡ‖²_F: how much the nodes' gradients disagree (paper, eq. hat-zeta)."""
    total = float(sum(np.square(B - B.mean(0)).sum() for B in column_blocks(G)))
    check_finite(total, G)
    return total / len(G)


def consensus_distance(X: Rows) -> float:
    """(1/n) ‖X − X̄‖²_F: how far apart the nodes' parameters are (paper, Figure 1b)."""
    return heterogeneity(X)


@_overflow
def gram_matrix(G: Rows) -> FloatArray:
    """Γ = (G − Ḡ)(G − Ḡ)ᵀ, (n, n): the inner products of the centered rows, which is all that GME-opt needs.

    Products are summed by NumPy's pairwise summation, not by BLAS: the same rows give the same bits on every processor
    and with any number of threads, so that all processes of a run choose the same weights.
    """
    n = len(as_rows(G))
    gram = np.zeros((n, n))
    for B in column_blocks(G):
        C = np.ascontiguousarray(B - B.mean(0))
        some = max(1, _PRODUCTS // C.size)
        for i in range(0, len(C), some):
            gram[i : i + some, i:] += np.multiply(C[i : i + some, None], C[i:]).sum(axis=2)
    check_finite(gram, G)
    return np.triu(gram) + np.triu(gram, 1).T


def gram_entries(G: Rows, i: IntArray, j: IntArray) -> FloatArray:
    """Γ[i, j] for pairs of nodes (q,): some entries of `gram_matrix(G)`, bit for bit, without the others."""
    entries = np.zeros(len(i))
    for B in column_blocks(G):
        C = np.ascontiguousarray(B - B.mean(0))
        some = max(1, _PRODUCTS // C.shape[1])
        for start in range(0, len(i), some):
            pairs = slice(start, start + some)
            entries[pairs] += np.multiply(C[i[pairs]], C[j[pairs]]).sum(axis=1)
    return entries


def error_after_mixing(gram: FloatArray, W: MixingMatrix) -> float:
    """Tr(WᵀΓW): the mixing error of updates with Gram matrix Γ (n, n), never below 0."""
    W.need_whole("the mixing error")
    senders, receivers = W.graph.pattern.rows, W.graph.pattern.cols
    error = float((W.weights * (W.incoming @ gram)[receivers, senders]).sum())
    return 0.0 if error < 0 else error  # not max, which would make NaN 0


def consensus_factor(W: Weights | Sequence[Weights], probabilities: Sequence[float] | None = None) -> float:
    """p = 1 − ‖W − J‖₂²; for a random W, 1 − λ_max(E[W Wᵀ] − J) (paper, Assumption 4).

    Args:
        W: one matrix, or the matrices that are drawn from.
        probabilities: one per matrix; equal by default.
    """
    if isinstance(W, MixingMatrix | np.ndarray | torch.Tensor) or not isinstance(W, Iterable):
        return 1 - _distance_from_averaging(W) ** 2
    matrices = [_dense(w) for w in W]
    if not matrices:
        raise MixingError("consensus_factor of no matrix; give one or several")
    chances = np.full(len(matrices), 1 / len(matrices)) if probabilities is None else np.asarray(probabilities, float)
    if len(chances) != len(matrices) or (chances < 0).any() or not abs(chances.sum() - 1) <= 1e-9:
        raise MixingError(f"probabilities = {chances.tolist()}; give one per matrix, none negative, with sum 1")
    second_moment = sum(q * w @ w.T for q, w in zip(chances, matrices, strict=True))
    return float(1 - np.linalg.eigvalsh(second_moment - 1 / len(matrices[0]))[-1])


def spectral_gap(W: Weights) -> float:
    """δ = 1 − ‖W − J‖₂; for symmetric W, 1 − max(|λ₂|, |λ_n|). Always δ ≤ p (paper, Remark 1 as corrected)."""
    return 1 - _distance_from_averaging(W)


def eigenvalues(W: Weights) -> npt.NDArray[Any]:
    """All n eigenvalues, largest modulus first; real if W is symmetric, otherwise complex."""
    dense = _dense(W)
    values = np.linalg.eigvalsh(dense) if (dense == dense.T).all() else np.linalg.eigvals(dense)
    order: npt.NDArray[np.intp] = np.argsort(-np.abs(values), kind="stable")
    return values[order]


def _distance_from_averaging(W: Weights) -> float:
    """‖W − J‖₂."""
    W = W if isinstance(W, MixingMatrix) else _dense(W)
    n = W.n if isinstance(W, MixingMatrix) else len(W)
    if n <= _DENSE_LIMIT:
        return float(np.linalg.norm(_dense(W) - 1 / n, 2))
    from scipy.sparse.linalg import LinearOperator, svds  # slow to import, and only large graphs need it

    if isinstance(W, MixingMatrix):
        W.need_whole("the norm of W − J")
    S = W.sparse if isinstance(W, MixingMatrix) else sparse.csr_array(W)
    operator = LinearOperator(
        (n, n), matvec=lambda x: S @ x - x.mean(), rmatvec=lambda x: S.T @ x - x.mean(), dtype=np.float64
    )
    return float(svds(operator, k=1, v0=_start(n), return_singular_vectors=False)[0])


def _dense(W: Weights) -> FloatArray:
    if isinstance(W, MixingMatrix):
        W.need_whole("the effect of W on all nodes")
        return W.to_dense()
    dense = as_float64(W, "W")
    if dense.ndim != 2 or dense.shape[0] != dense.shape[1]:
        raise MixingError(f"a mixing matrix is square, got an array of shape {dense.shape}")
    if not np.isfinite(dense).all():
        i, j = np.argwhere(~np.isfinite(dense))[0]
        raise MixingError(f"W[{i}, {j}] = {dense[i, j]}; weights are finite")
    return dense


# --- the ends of the spectrum of a weighted Laplacian L(w) = B diag(w) Bᵀ; B (n, E) the node-edge incidence matrix ---
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
    if n <= _DENSE_LAPLACIAN:
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
    if n <= _DENSE_LAPLACIAN:
        values, vectors = np.linalg.eigh(L.toarray())
        return values[: -count - 1 : -1], vectors[:, : -count - 1 : -1]
    from scipy.sparse.linalg import eigsh

    values, vectors = eigsh(L, count, which="LA", v0=_start(n), tol=1e-6)
    order = np.argsort(-values)
    return values[order], vectors[:, order]


def largest_off_constant(E: sparse.csr_array) -> float:
    """λ_max(E − J) of a symmetric positive semidefinite E (n, n) with E𝟏 = 𝟏."""
    n = E.shape[0]
    if n <= _DENSE_LAPLACIAN:
        return float(np.linalg.eigvalsh(E.toarray() - 1 / n)[-1])
    from scipy.sparse.linalg import LinearOperator, eigsh

    operator = LinearOperator((n, n), matvec=lambda x: E @ x - x.mean(), dtype=np.float64)
    return float(eigsh(operator, 1, which="LA", v0=_start(n), return_eigenvectors=False, tol=1e-8)[0])


def _start(n: int) -> FloatArray:
    """A fixed start vector, so that the same graph or W gives the same result."""
    return np.random.Generator(np.random.PCG64(0)).standard_normal(n)
