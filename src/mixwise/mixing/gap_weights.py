"""The fastest mixing weights of a graph: the optimal spectral gap (Boyd, Diaconis and Xiao, 2004).

    minimize    ‖W − J‖₂
    subject to  W = Wᵀ,  W𝟏 = 𝟏,  W ≥ 0,  W[i, j] = 0 where (i, j) is no edge

a semidefinite program, solved by Clarabel up to 64 nodes. Above, a bundle method that needs only eigenvectors at the
two ends of the spectrum (`solvers.spectral_bundle`). With W = I − B diag(w) Bᵀ (B: node-edge incidence, w: weights of
the edges), symmetry, row sums and sparsity hold by construction.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy import sparse

from mixwise.errors import MixingError, SolverError
from mixwise.graphs import Graph
from mixwise.mixing.matrix import FloatArray, MixingMatrix
from mixwise.mixing.solvers import spectral_bundle
from mixwise.mixing.weights import from_edge_weights
from mixwise.parts import part

LARGEST_EXACT = 64  # nodes; the semidefinite program takes seconds there and minutes at 128


@part("optimal-gap", "scheme", title="weights with the best spectral gap", cite="Boyd, Diaconis and Xiao 2004")
@lru_cache(maxsize=64)
def optimal_gap(graph: Graph) -> MixingMatrix:
    """The symmetric mixing matrix of largest spectral gap; cached per graph.

    Up to 64 nodes to the accuracy of the semidefinite program. Above, an approximation, never worse than
    Metropolis-Hastings: on rings, tori, grids, random and geometric graphs of up to 64 nodes, where both can be
    compared, its ‖W − J‖₂ is within 1 % of the optimum and its spectral gap at least 99 % of it. At 1,000 nodes it
    takes from a second (torus) to half a minute (10,000 edges); above 2,000 edges it may stop before that accuracy.

    >>> from mixwise.graphs import Graph
    >>> optimal_gap(Graph(3, [(0, 1), (1, 2), (2, 0)])).to_dense().round(4).tolist()[0]
    [0.3333, 0.3333, 0.3333]
    """
    n = graph.n
    if graph.directed:
        raise MixingError("optimal_gap needs an undirected graph, since its weights are the same both ways")
    if not graph.is_connected:
        raise MixingError(
            f"the graph has {len(graph.components)} components, so its spectral gap is 0 whatever the weights; "
            f"take metropolis_hastings(graph), or one component"
        )
    if n == 1:
        return from_edge_weights(graph, {})
    return from_edge_weights(graph, _exact(graph) if n <= LARGEST_EXACT else approximate_weights(graph))


def approximate_weights(graph: Graph) -> FloatArray:
    """Edge weights (E,) by the bundle method, from the better one of two starts: never worse than either."""
    degrees = np.asarray(graph.degrees)[graph.edge_array]
    starts = (1 / (1 + degrees.max(axis=1)), np.full(len(degrees), spectral_bundle.constant_weight(graph)))
    best = min(starts, key=lambda w: spectral_bundle.distance_from_averaging(graph, w))
    return spectral_bundle.minimize_norm(graph, best)


def _exact(graph: Graph) -> FloatArray:
    """Edge weights (E,) by the semidefinite program: minimize t subject to −tI ⪯ I − J − L(w) ⪯ tI, w ≥ 0, |B|w ≤ 1.

    Here L(w) = B diag(w) Bᵀ = Σ_e w_e b_e b_eᵀ. Clarabel takes Ax + s = b with x = (w, t) and s in a product of cones;
    it stores a symmetric matrix as svec: the upper triangle, column by column, with entries off the diagonal times √2.
    """
    import clarabel  # only this function needs it

    n, E = graph.n, len(graph.edge_array)
    i, j = graph.edge_array.T
    B = sparse.csr_array((np.repeat([1.0, -1.0], E), (np.concatenate([i, j]), np.tile(np.arange(E), 2))), shape=(n, E))
    column, row = np.tril_indices(n)
    scale = np.where(row == column, 1.0, np.sqrt(2.0))
    identity = scale * (row == column)
    deviation = identity - scale / n  # svec(I − J)
    edges = sparse.diags_array(scale) @ (B[row] * B[column])  # columns svec(b_e b_eᵀ)
    t = sparse.csc_array(identity[:, None])
    A = sparse.block_array([[-sparse.eye_array(E), None], [abs(B), None], [edges, -t], [-edges, -t]], format="csc")
    b = np.concatenate([np.zeros(E), np.ones(n), deviation, -deviation])
    cones = [clarabel.NonnegativeConeT(E + n), clarabel.PSDTriangleConeT(n), clarabel.PSDTriangleConeT(n)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1  # the number of threads changes the last bits
    P, q = sparse.csc_array((E + 1, E + 1)), np.append(np.zeros(E), 1.0)
    solution = clarabel.DefaultSolver(P, q, A, b, cones, settings).solve()
    if solution.status not in (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved):
        raise SolverError(f"the optimal spectral gap was not found: {solution.status}; take metropolis_hastings(graph)")
    weights: FloatArray = np.clip(solution.x[:-1], 0, None)
    return weights / max(1.0, float((abs(B) @ weights).max()))  # the solver may leave a loop at −1e-10
