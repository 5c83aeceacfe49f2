"""GME-opt as a sparse quadratic program on the edges, solved by PIQP, and as the paper poses it, solved by CVXPY.

    minimize    Σ_j w_jᵀ Γ w_j + λ ‖w‖²          (w_j: column j of W, restricted to the senders that j hears)
    subject to  Σ_j W[i, j] = 1 for all i,  Σ_i W[i, j] = 1 for all j,  W ≥ 0.

The entries of W off the graph are not variables, and W ≤ 1 follows from the sums. With `symmetric`, both directions of
an edge are one variable, and the row constraints imply the column constraints. With kind="sender" the column
constraints are Σ_i W[i, j] ≥ c (`least_heard`): none for c = 0, the doubly stochastic case for c = 1.

The sparsity pattern depends on the graph alone: it is laid out once, and each Γ only fills in numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import piqp
from scipy.sparse import csc_matrix, vstack

from mixwise.graphs import Graph
from mixwise.mixing.matrix import FloatArray, Kind
from mixwise.mixing.solution import SolveStatus

_STATUS = {
    piqp.PIQP_SOLVED: SolveStatus.OPTIMAL,
    piqp.PIQP_MAX_ITER_REACHED: SolveStatus.NOT_CONVERGED,
    piqp.PIQP_PRIMAL_INFEASIBLE: SolveStatus.INFEASIBLE,
    piqp.PIQP_DUAL_INFEASIBLE: SolveStatus.UNBOUNDED,
    piqp.PIQP_NUMERICS: SolveStatus.NUMERICAL_ERROR,
    # CVXPY's
    "infeasible": SolveStatus.INFEASIBLE,
    "unbounded": SolveStatus.UNBOUNDED,
    "optimal_inaccurate": SolveStatus.NOT_CONVERGED,
    "user_limit": SolveStatus.NOT_CONVERGED,
}

# Optimal W are far from unique, so the KKT systems are nearly singular. Each is factored with a shift added to its
# diagonal, then refined to the system without it. Of 20,000 random instances, most of them with λ = 0, one in twenty
# ended at the iteration limit with PIQP's own settings, one in a thousand with 2e-8, none with 3e-8, one in ten
# thousand with 1e-7. Where the first shift stalls, the next ones are tried.
_SHIFTS = (3e-8, 6e-8, 1e-7)


class RawSolution(NamedTuple):
    """A solver's result, before it is checked."""

    weights: FloatArray  # (A + n,), in the order of graph.pattern
    status: SolveStatus
    iterations: int


class EdgeQP:
    """The program of one graph, prepared once and solved for any number of Gram matrices."""

    def __init__(self, graph: Graph, symmetric: bool = False, kind: Kind = "doubly", least_heard: float = 0.0) -> None:
        pattern, n = graph.pattern, graph.n
        rows, cols = pattern.rows[pattern.by_column], pattern.cols[pattern.by_column]
        entries = np.arange(len(rows))

        # Pairs a ≤ b of entries in the same column: the upper triangle of one block per column.
        first = np.searchsorted(cols, cols)  # where the column of each entry starts
        count = entries - first + 1
        b = np.repeat(entries, count)
        a = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + first[b]

        # The variable of each entry: itself, or the edge whose two directions are tied.
        variable = entries
        if symmetric:
            ends = np.sort(np.stack([rows, cols], axis=1), axis=1)
            variable = np.unique(ends, axis=0, return_inverse=True)[1].reshape(-1)
        size = int(variable.max()) + 1

        # P[u, v], u ≤ v, sums Γ[sender of a, sender of b] over all pairs (a, b) whose variables are u and v.
        u, v = np.sort(np.stack([variable[a], variable[b]]), axis=0)
        places, self._slot = np.unique(v * size + u, return_inverse=True)
        self._source = rows[a] * n + rows[b]
        columns, indices = np.divmod(places, size)
        indptr = np.searchsorted(columns, np.arange(size + 1))
        layout = np.zeros(len(places)), indices.astype(np.int32), indptr.astype(np.int32)
        self._P = csc_matrix(layout, shape=(size, size))
        self._diagonal = np.flatnonzero(columns == indices)
        self._multiplicity = np.bincount(variable, minlength=size).astype(np.float64)

        row_sums, column_sums = (csc_matrix((np.ones(len(x)), (x, variable)), shape=(n, size)) for x in (rows, cols))
        by_rows_only = symmetric or kind == "sender"
        self._A = row_sums if by_rows_only else vstack([row_sums, column_sums], format="csc")
        self._floor = (column_sums, least_heard) if kind == "sender" and least_heard > 0 else None
        self._variable_of_entry = np.empty_like(entries)
        self._variable_of_entry[pattern.by_column] = variable
        self._solver: piqp.SparseSolver | None = None

    def solve(self, gram: FloatArray, regularization: float) -> RawSolution:
        """Minimize for a Γ (n, n) that the caller has scaled to mean diagonal 1."""
        P = self._P
        P.data[:] = np.bincount(self._slot, weights=gram.ravel()[self._source])
        P.data[self._diagonal] += regularization * self._multiplicity
        P.data *= 2 / (1 + regularization)  # PIQP minimizes ½ xᵀPx; entries of about 1 for any λ
        if self._solver is None:
            self._solver = _prepared(P, self._A, self._floor, _SHIFTS[0])
        else:
            self._solver.update(P=P)
        solver = self._solver
        status, iterations = solver.solve(), solver.result.info.iter
        for shift in _SHIFTS[1:]:
            if status == piqp.PIQP_SOLVED:
                break
            solver = _prepared(P, self._A, self._floor, shift)
            status, iterations = solver.solve(), iterations + solver.result.info.iter
        weights = solver.result.x[self._variable_of_entry]
        return RawSolution(weights, _STATUS.get(status, SolveStatus.FAILED), iterations)


def _prepared(P: csc_matrix, A: csc_matrix, floor: tuple[csc_matrix, float] | None, shift: float) -> piqp.SparseSolver:
    """A solver for A x = 1, x ≥ 0 and, with a floor (C, c), C x ≥ c."""
    solver = piqp.SparseSolver()
    settings = solver.settings
    # With its own preconditioner, PIQP 0.6.4 ends `update` + `solve` in MAX_ITER with a wrong W; without it, and with
    # Γ scaled by us, a reused solver returns the same bits as a fresh one (tests/mixing/test_gme.py keeps watch).
    settings.preconditioner_iter = 0
    settings.iterative_refinement_always_enabled = True
    settings.iterative_refinement_static_regularization_eps = shift
    # A gap of ε leaves an error of √(ε/λ₀) in W along directions that only the tie-break λ₀ = 1e-8 decides.
    settings.eps_abs = settings.eps_duality_gap_abs = settings.eps_duality_gap_rel = 1e-12
    settings.eps_rel = 0.0
    size, height = P.shape[0], A.shape[0]
    C, least = (None, None) if floor is None else (floor[0], np.full(floor[0].shape[0], floor[1]))
    solver.setup(P, np.zeros(size), A, np.ones(height), C, least, None, np.zeros(size), None)
    return solver


def solve_by_cvxpy(
    graph: Graph,
    gram: FloatArray,
    regularization: float,
    symmetric: bool = False,
    kind: Kind = "doubly",
    least_heard: float = 0.0,
    backend: str = "CLARABEL",
) -> RawSolution:
    """The program as the paper poses it: all n² entries are variables, those off the graph are set to 0.

        minimize    ‖R W‖²_F   with RᵀR = Γ + λ I
        subject to  W𝟏 = 𝟏,  Wᵀ𝟏 = 𝟏 (kind="sender": Wᵀ𝟏 ≥ c),  0 ≤ W ≤ 1,  W[i, j] = 0 where (i, j) is not an edge

    It is slow and shares no code with `EdgeQP`: the reference of the tests and of the benchmarks. `backend` is the
    solver that CVXPY calls.
    """
    import cvxpy as cp  # an optional package, slow to import

    n, pattern = graph.n, graph.pattern
    values, vectors = np.linalg.eigh(gram + regularization * np.eye(n))
    R = (vectors * np.sqrt(values.clip(min=0))).T
    off_graph = np.ones((n, n))
    off_graph[pattern.rows, pattern.cols] = 0
    W, one = cp.Variable((n, n)), np.ones(n)
    columns = one @ W >= least_heard if kind == "sender" else one @ W == 1
    constraints = [W @ one == 1, columns, W >= 0, W <= 1, cp.multiply(off_graph, W) == 0]
    constraints += [W == W.T] if symmetric else []
    problem = cp.Problem(cp.Minimize(cp.sum_squares(R @ W)), constraints)
    problem.solve(solver=backend)
    if problem.status != cp.OPTIMAL:
        failed = _STATUS.get(problem.status, SolveStatus.FAILED)
        return RawSolution(np.full(len(pattern.rows), np.nan), failed, 0)
    iterations = int(problem.solver_stats.num_iters or 0)
    return RawSolution(W.value[pattern.rows, pattern.cols], SolveStatus.OPTIMAL, iterations)
