"""The weights of optimal spectral gap: the fastest mixing symmetric W on a graph (Boyd, Diaconis and Xiao, 2004).

    minimize    ‖W − J‖₂
    subject to  W = Wᵀ,  W𝟏 = 𝟏,  W ≥ 0,  W[i, j] = 0 where (i, j) is not an edge

With edge weights w (E,), W = I − L(w) and L(w) = B diag(w) Bᵀ = Σ_e w_e b_e b_eᵀ, symmetry, row sums and sparsity hold
by construction, and

    minimize    f(w) = ‖I − L(w) − J‖₂ = max(1 − λ₂(L(w)), λ_n(L(w)) − 1)
    subject to  w ≥ 0,  |B| w ≤ 1          (|B| w: the sum of the weights at each node)

is left. Up to 64 nodes it is solved as a semidefinite program, on larger graphs by a proximal bundle method: every unit
v ⟂ 𝟏 bounds the convex f from below. With c_e = (v_i − v_j)², vᵀL(w)v = cᵀw, so f(w) ≥ 1 − cᵀw and f(w) ≥ cᵀw − 1;
eigenvectors at the two ends of the spectrum of L(w) make these cuts tight at w. The method keeps a bundle of cuts and
the best weights ŵ, and repeatedly solves

    minimize  t + (ρ/2) ‖w − ŵ‖²   subject to  all cuts ≤ t,  w ≥ 0,  |B| w ≤ 1.

If f falls by a fraction of what the cuts predict, w becomes ŵ; otherwise its cuts improve the model. The method stops
when neither the predicted fall nor the slope ρ‖w − ŵ‖ leaves room for a gain that matters, or after a number of rounds
that depends on E alone, so that all processes find the same weights.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import piqp
from scipy import sparse

from mixwise.errors import SolverError
from mixwise.graphs import Graph
from mixwise.graphs.spec import as_graph
from mixwise.mixing.matrix import FloatArray, MixingMatrix
from mixwise.mixing.metrics import highest, incidence, laplacian, lowest
from mixwise.mixing.weights import from_edge_weights, metropolis_hastings
from mixwise.parts import part

LARGEST_EXACT = 64  # nodes; the semidefinite program takes seconds there and minutes at 128

_ROUNDS = 80  # on graphs of up to 1,000 edges
_LEAST_ROUNDS = 12
_EDGE_ROUNDS = 80_000  # edges × rounds on larger graphs, so that they take half a minute at most
_VECTORS = 4  # eigenvectors per end of the spectrum and round
_KEPT = 20  # most recent cuts, which are kept besides the active ones
_ZERO_NORM = 1e-9  # a norm that is 0 up to rounding
_ACCURACY = 0.005  # a gain that matters, as a fraction of f or of 1 − f
_SUFFICIENT = 0.1  # fraction of the predicted fall that moves ŵ


@part("optimal-gap", "scheme", title="weights with the best spectral gap", cite="Boyd, Diaconis and Xiao 2004")
def optimal_gap(graph: Graph) -> MixingMatrix:
    """The symmetric mixing matrix with the largest spectral gap 1 − ‖W − J‖₂; cached per graph.

    Up to 64 nodes it has the accuracy of the semidefinite program. On larger graphs it is an approximation that is
    never worse than Metropolis-Hastings: on rings, tori, grids, random and geometric graphs of up to 64 nodes, where
    both can be compared, its ‖W − J‖₂ is within 1 % of the optimum and its spectral gap at least 99 % of it. At 1,000
    nodes it takes from a second (torus) to half a minute (10,000 edges); above 2,000 edges it may stop before it
    reaches that accuracy.

    >>> from mixwise.graphs import Graph
    >>> optimal_gap(Graph(3, [(0, 1), (1, 2), (2, 0)])).to_dense().round(4).tolist()[0]
    [0.3333, 0.3333, 0.3333]
    """
    graph = as_graph(graph)
    graph.require_connected("optimal_gap")
    return _optimal_gap(graph)


@lru_cache(maxsize=64)
def _optimal_gap(graph: Graph) -> MixingMatrix:
    if graph.n == 1:
        return metropolis_hastings(graph)
    return from_edge_weights(graph, exact_weights(graph) if graph.n <= LARGEST_EXACT else approximate_weights(graph))


def exact_weights(graph: Graph) -> FloatArray:
    """Optimal edge weights (E,) by a semidefinite program.

        minimize t   subject to  −tI ⪯ I − J − L(w) ⪯ tI,  w ≥ 0,  |B| w ≤ 1

    Clarabel takes Ax + s = b with x = (w, t) and s in a product of cones. It stores a symmetric matrix as svec: the
    upper triangle, column by column, with off-diagonal entries times √2.
    """
    import clarabel  # only this function needs it

    n, E = graph.n, len(graph.edge_array)
    B = incidence(graph)
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
        raise SolverError(f"the optimal spectral gap was not found: {solution.status}; use metropolis_hastings(graph)")
    return _feasible(abs(B), np.asarray(solution.x[:-1]))


def approximate_weights(graph: Graph) -> FloatArray:
    """Edge weights (E,) by the bundle method, started from the better of two choices and never worse than either.

    These are Metropolis-Hastings weights and the best constant weight: 2 / (λ₂ + λ_n) of the plain Laplacian, but at
    most 1/Δ. The search stops when the model promises a gain of less than 0.5 % of f, or of the spectral gap 1 − f if
    that is smaller.
    """
    degrees = np.asarray(graph.degrees)[graph.edge_array].max(axis=1)
    L = laplacian(graph.n, graph.edge_array, np.ones(len(degrees)))
    constant = min(2 / float(lowest(L, 1)[0][0] + highest(L, 1)[0][0]), 1 / max(graph.degrees))
    starts = (1 / (1 + degrees), np.full(len(degrees), constant))
    best, cuts, center = min(((*_cuts(graph, w), w) for w in starts), key=lambda start: start[0])
    if best <= _ZERO_NORM:
        return center  # full averaging already
    at_node, crowded = abs(incidence(graph)), np.zeros(graph.n, dtype=bool)
    rho, failures = 0.05, 0
    for _ in range(max(_LEAST_ROUNDS, min(_ROUNDS, _EDGE_ROUNDS // len(center)))):
        step = _solved_round(at_node, crowded, cuts, center, rho)
        if step is None:
            break  # the quadratic program stalled: return the best weights so far
        value, new_cuts = _cuts(graph, step.w)
        predicted, fall = best - step.bound, best - value
        room = _ACCURACY * min(1 - best, best)
        if predicted <= room:
            slope = rho * float(np.linalg.norm(step.w - center))
            if slope * 0.5 * float(np.linalg.norm(center)) <= room:
                return step.w if fall > 0 else center
            rho /= 4
        if fall >= _SUFFICIENT * predicted:
            rho /= 4 if fall >= 0.5 * predicted else 1
            center, best, failures = step.w, value, 0
        else:
            failures += 1
            rho *= 2 if failures % 4 == 0 else 1
        recent = np.arange(len(cuts)) >= len(cuts) - _KEPT
        cuts = np.concatenate([cuts[step.active | recent], new_cuts])
    return center


class _Step(NamedTuple):
    """The solution of one round's quadratic program in the variables (w, t)."""

    w: FloatArray  # (E,)
    bound: float  # t, the value of the model at w
    active: npt.NDArray[np.bool_]  # (K,), which cuts hold with equality


def _solved_round(
    at_node: sparse.csr_array, crowded: npt.NDArray[np.bool_], cuts: FloatArray, center: FloatArray, rho: float
) -> _Step | None:
    """The solution of a round for the cuts (K, E + 1) of `_cuts`, or None if the solver fails.

    Node constraints are added to `crowded` (n,) once they are violated, and kept for the next rounds.
    """
    E = len(center)
    P, q = sparse.diags(np.append(np.full(E, rho), 0.0)).tocsc(), np.append(-rho * center, 1.0)
    lower = np.append(np.zeros(E), -1.0)
    while True:
        nodes = at_node[np.flatnonzero(crowded)]
        t = np.append(-np.ones(len(cuts)), np.zeros(nodes.shape[0]))
        rows = sparse.vstack([sparse.csc_matrix(cuts[:, :-1]), nodes])
        constraints = sparse.csc_matrix(sparse.hstack([rows, sparse.csc_matrix(t[:, None])]))
        upper = np.append(cuts[:, -1], np.ones(nodes.shape[0]))
        solver = piqp.SparseSolver()
        solver.settings.eps_abs = solver.settings.eps_duality_gap_abs = 1e-8
        solver.settings.eps_rel = solver.settings.eps_duality_gap_rel = 1e-6
        solver.setup(P, q, None, None, constraints, None, upper, lower, None)
        if solver.solve() != piqp.PIQP_SOLVED:
            return None
        w = np.asarray(solver.result.x[:-1]).clip(min=0)
        over = (at_node @ w > 1 + 1e-9) & ~crowded
        if not over.any():
            active = np.asarray(solver.result.z_u)[: len(cuts)] > 1e-7
            return _Step(_feasible(at_node, w), float(solver.result.x[-1]), active)
        crowded |= over


def _cuts(graph: Graph, w: FloatArray) -> tuple[float, FloatArray]:
    """f(w), and cuts (K, E + 1) from both ends of the spectrum of L(w): rows (s c, s) for s (cᵀw − 1) ≤ t, s = ±1."""
    L = laplacian(graph.n, graph.edge_array, w)
    i, j = graph.edge_array.T
    (low, low_vectors), (high, high_vectors) = lowest(L, _VECTORS), highest(L, _VECTORS)
    value = max(1 - low[0], high[0] - 1)
    cuts = []
    for sign, values, vectors in ((-1.0, 1 - low, low_vectors), (1.0, high - 1, high_vectors)):
        near = values >= value - 0.2 * max(value, 0.1)
        c = (vectors[i][:, near] - vectors[j][:, near]).T ** 2
        cuts.append(np.column_stack([sign * c, np.full(len(c), sign)]))
    return float(value), np.concatenate(cuts)


def _feasible(at_node: sparse.csr_array, w: FloatArray) -> FloatArray:
    """w ≥ 0 scaled down such that the weights at every node sum to 1 at most."""
    w = w.clip(min=0)
    return w / max(1.0, float((at_node @ w).max()))
