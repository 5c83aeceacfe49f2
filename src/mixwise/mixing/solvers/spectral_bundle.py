"""The fastest mixing weights of large graphs, by a proximal bundle method.

With L(w) = B diag(w) Bᵀ the Laplacian of the edge weights w,

    f(w) = ‖I − L(w) − J‖₂ = max(1 − λ₂(L(w)), λ_n(L(w)) − 1)

is convex, and every unit v ⟂ 𝟏 gives lower bounds that are linear in w: with c_e = (v_i − v_j)² for the edges e,
vᵀL(w)v = cᵀw, so f(w) ≥ 1 − cᵀw and f(w) ≥ cᵀw − 1. Eigenvectors at the two ends of the spectrum of L(w) make them
tight at w. The method keeps a bundle of such cuts and the best weights ŵ, and solves again and again

    minimize  t + (ρ/2) ‖w − ŵ‖²   subject to  all cuts ≤ t,  w ≥ 0,  Σ_{e at i} w_e ≤ 1 for every node i.

If f falls by a share of what the cuts predict, the new w becomes ŵ; otherwise its cuts make the model better. It ends
when neither the predicted fall nor the slope ρ‖w − ŵ‖ of the model leaves room for a gain that matters, or after a
number of rounds that depends on the number of edges alone, so that all processes find the same weights.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import piqp
from scipy import sparse

from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.mixing.matrix import FloatArray
from mixwise.mixing.spectra import highest, laplacian, lowest

_ROUNDS = 80  # on graphs of up to 1,000 edges
_LEAST_ROUNDS = 12
_EDGE_ROUNDS = 80_000  # edges times rounds on larger graphs, so that they take no longer than half a minute
_VECTORS = 4  # eigenvectors per end and round
_KEPT = 20  # cuts besides the active ones
_NOTHING = 1e-9  # a norm that is 0 but for rounding
_ENOUGH = 0.1  # share of the predicted fall that makes a serious step


def minimize_norm(graph: Graph, start: FloatArray, accuracy: float = 0.005) -> FloatArray:
    """Edge weights (E,) of small ‖W − J‖₂ for a connected graph, from feasible weights and never worse than them.

    The search ends when the model promises less than `accuracy` times the norm, or the spectral gap if that is less.
    """
    n, edges = graph.n, graph.edge_array
    center, w = start, start
    best, ends = _cuts(n, edges, start)
    cuts = ends
    program = _Program(graph)
    rho, failures = 0.05, 0
    if best <= _NOTHING:
        return start  # full averaging already
    for _ in range(max(_LEAST_ROUNDS, min(_ROUNDS, _EDGE_ROUNDS // len(edges)))):
        solved = program.solve(cuts, center, rho)
        if solved is None:
            break  # the quadratic program stalled: what was found so far stands
        w, bound, active = solved
        value, ends = _cuts(n, edges, w)
        predicted = best - bound
        fall = best - value
        slope = rho * float(np.linalg.norm(w - center))
        room = accuracy * min(1 - best, best)
        if predicted <= room:
            if slope * 0.5 * float(np.linalg.norm(center)) <= room:
                if fall > 0:
                    center = w
                break
            rho /= 4
        if fall >= _ENOUGH * predicted:
            if fall >= 0.5 * predicted:
                rho /= 4
            center, best, failures = w, value, 0
        else:
            failures += 1
            if failures % 4 == 0:
                rho *= 2
        recent = np.arange(len(active)) >= len(active) - _KEPT
        cuts = np.concatenate([cuts[active | recent], ends])
    return center


class _Program:
    """The quadratic program of a round; variables (w, t)."""

    def __init__(self, graph: Graph) -> None:
        i, j = graph.edge_array.T
        e = np.arange(len(i))
        self.ends = sparse.csr_array(
            (np.ones(2 * len(e)), (np.concatenate([i, j]), np.concatenate([e, e]))), shape=(graph.n, len(e))
        )
        self.crowded = np.zeros(graph.n, dtype=bool)  # nodes whose weights were once asked to sum to more than 1

    def solve(
        self, cuts: FloatArray, center: FloatArray, rho: float
    ) -> tuple[FloatArray, float, npt.NDArray[np.bool_]] | None:
        """w, the value t of the model there, and which cuts are active."""
        E = len(center)
        while True:
            rows = self.ends[np.flatnonzero(self.crowded)]
            G = np.zeros((len(cuts), E + 1))
            G[:, :-1], G[:, -1] = cuts[:, :-1], -1.0
            constraints = sparse.vstack([sparse.csc_matrix(G), _with_column(rows)], format="csc")
            upper = np.concatenate([cuts[:, -1], np.ones(rows.shape[0])])
            P = sparse.diags(np.append(np.full(E, rho), 0.0)).tocsc()
            q = np.append(-rho * center, 1.0)
            solver = piqp.SparseSolver()
            solver.settings.eps_abs = solver.settings.eps_duality_gap_abs = 1e-8
            solver.settings.eps_rel = solver.settings.eps_duality_gap_rel = 1e-6
            solver.setup(P, q, None, None, constraints, None, upper, np.append(np.zeros(E), -1.0), None)
            if solver.solve() != piqp.PIQP_SOLVED:
                return None
            w = np.asarray(solver.result.x[:-1]).clip(min=0)
            over = (self.ends @ w > 1 + 1e-9) & ~self.crowded
            if not over.any():
                break
            self.crowded |= over
        active = np.asarray(solver.result.z_u)[: len(cuts)] > 1e-7
        bound = float(solver.result.x[-1])
        return w / max(1.0, float((self.ends @ w).max())), bound, active


def _with_column(rows: sparse.csr_array) -> sparse.csc_matrix:
    """The same rows with a column of zeros, for t."""
    return sparse.csc_matrix(sparse.hstack([rows, sparse.csr_array((rows.shape[0], 1))]))


def _cuts(n: int, edges: IntArray, w: FloatArray) -> tuple[float, FloatArray]:
    """f(w), and cuts (K, E + 1) from the ends of the spectrum of L(w): rows (s c, s) for s (cᵀw − 1) ≤ t, s = ±1."""
    L = laplacian(n, edges, w)
    i, j = edges.T
    low, low_vectors = lowest(L, _VECTORS)
    high, high_vectors = highest(L, _VECTORS)
    value = max(1 - low[0], high[0] - 1)
    rows = []
    for sign, values, vectors in ((-1.0, 1 - low, low_vectors), (1.0, high - 1, high_vectors)):
        near = values >= value - 0.2 * max(value, 0.1)
        for v in vectors[:, near].T:
            rows.append(np.append(sign * (v[i] - v[j]) ** 2, sign))
    return float(value), np.array(rows)


def distance_from_averaging(graph: Graph, w: FloatArray) -> float:
    """f(w) = ‖W − J‖₂ of the edge weights w (E,)."""
    return _cuts(graph.n, graph.edge_array, w)[0]


def constant_weight(graph: Graph) -> float:
    """The best weight that is the same on every edge: 2 / (λ₂ + λ_n) of the plain Laplacian, 1/Δ at most."""
    L = laplacian(graph.n, graph.edge_array, np.ones(len(graph.edge_array)))
    best = 2 / float(lowest(L, 1)[0][0] + highest(L, 1)[0][0])
    return min(best, 1 / max(graph.degrees))
