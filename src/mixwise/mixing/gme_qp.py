"""GME-opt as a sparse quadratic program on the edges, solved by PIQP, and as the paper poses it, solved by CVXPY.

    minimize    Σ_j w_jᵀ Γ w_j + λ ‖w‖²          (w_j: column j of W, restricted to the senders that j hears)
    subject to  Σ_j W[i, j] = 1 for all i,  Σ_i W[i, j] = 1 for all j,  W ≥ 0.

The entries of W off the graph are not variables, and W ≤ 1 follows from the sums. With `symmetric`, both directions of
an edge are one variable, and the row constraints imply the column constraints. With kind="sender" the column
constraints are Σ_i W[i, j] ≥ c (`least_heard`): none for c = 0, the doubly stochastic case for c = 1.

The sparsity pattern depends on the graph alone: it is laid out once, and each Γ only fills in numbers. Only the inner
products between nodes that send to a common node are needed.

Scaled: Γ with mean diagonal 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import piqp
from scipy.sparse import csc_matrix, vstack

from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.mixing.matrix import FloatArray, Kind
from mixwise.mixing.solution import TIE_BREAK, SolveStatus

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
_LOOSEST = 1e-3  # of PIQP's tolerances: with larger ones, its x is hardly ever feasible
_PROXIMAL = 1e-8  # of PIQP's steps: the violation of A x = 1 after a few of them is proportional to it
_VIOLATION = 1e-10  # of the constraints, at most, where a tolerance stops the solver early: rounding must repair it


class RawSolution(NamedTuple):
    """A solver's result, before it is checked."""

    weights: FloatArray  # (A + n,), in the order of graph.pattern
    status: SolveStatus
    iterations: int


class Attempt(NamedTuple):
    """How PIQP is called: to full accuracy, or until the distance from the optimum is about `tolerance`."""

    shift: float
    tolerance: float | None = None


class EdgeQP:
    """The program of one graph, prepared once and solved for any number of Gram matrices.

    With a `tolerance`, PIQP may stop at that distance from the optimum, relative to it, or at 1e-8 Tr Γ, the cost of
    the tie-break. A lower bound of the optimum certifies the distance. Where it does not, and with `least_heard`, which
    PIQP meets late, the program is solved to full accuracy.

    Attributes:
        pairs: i ≤ j, (q,) each: the pairs of nodes that send to a common node. "Entries" are Γ[i, j].
        loops: (n,), the positions of (0, 0), (1, 1), … in `pairs`.
    """

    def __init__(
        self,
        graph: Graph,
        symmetric: bool = False,
        kind: Kind = "doubly",
        least_heard: float = 0.0,
        tolerance: float | None = None,
    ) -> None:
        pattern, n = graph.pattern, graph.n
        rows, cols = pattern.rows[pattern.by_column], pattern.cols[pattern.by_column]
        weights = np.arange(len(rows))

        # Pairs a ≤ b of weights in the same column: the upper triangle of one block per column.
        first = np.searchsorted(cols, cols)  # where the column of each weight starts
        count = weights - first + 1
        b = np.repeat(weights, count)
        a = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + first[b]
        pairs, self._entry = np.unique(rows[a] * n + rows[b], return_inverse=True)
        self.pairs: tuple[IntArray, IntArray] = np.divmod(pairs, n)
        self.loops = np.flatnonzero(self.pairs[0] == self.pairs[1])

        # The variable of each weight: itself, or the edge whose two directions are tied.
        variable = weights
        if symmetric:
            ends = np.sort(np.stack([rows, cols], axis=1), axis=1)
            variable = np.unique(ends, axis=0, return_inverse=True)[1].reshape(-1)
        size = int(variable.max()) + 1

        # P[u, v], u ≤ v, sums Γ[sender of a, sender of b] over all pairs (a, b) whose variables are u and v.
        u, v = np.sort(np.stack([variable[a], variable[b]]), axis=0)
        places, self._slot = np.unique(v * size + u, return_inverse=True)
        columns, indices = np.divmod(places, size)
        indptr = np.searchsorted(columns, np.arange(size + 1))
        layout = np.zeros(len(places)), indices.astype(np.int32), indptr.astype(np.int32)
        self._P = csc_matrix(layout, shape=(size, size))
        self._u, self._v, self._diagonal = indices, columns, np.flatnonzero(columns == indices)
        self._multiplicity = np.bincount(variable, minlength=size).astype(np.float64)

        row_sums, column_sums = (csc_matrix((np.ones(len(x)), (x, variable)), shape=(n, size)) for x in (rows, cols))
        by_rows_only = symmetric or kind == "sender"
        self._A = row_sums if by_rows_only else vstack([row_sums, column_sums], format="csc")
        self._floor = (column_sums, least_heard) if kind == "sender" and least_heard > 0 else None
        self._variable_of_weight = np.empty_like(weights)
        self._variable_of_weight[pattern.by_column] = variable
        self._starts = pattern.indptr[:-1]
        self._attempts = [Attempt(shift) for shift in _SHIFTS]
        if tolerance is not None and self._floor is None:
            self._attempts.insert(0, Attempt(_SHIFTS[0], tolerance))
        self._solvers: dict[Attempt, piqp.SparseSolver] = {}

    def solve(self, entries: FloatArray, regularization: float) -> RawSolution:
        """Minimize for the entries (q,) of a scaled Γ."""
        P = self._P
        P.data[:] = self._sums(entries)
        P.data[self._diagonal] += regularization * self._multiplicity
        P.data *= 2 / (1 + regularization)  # PIQP minimizes ½ xᵀPx; entries of about 1 for any λ
        iterations = 0
        for attempt in self._attempts:
            if attempt in self._solvers:
                self._solvers[attempt].update(P=P)
            else:
                self._solvers[attempt] = _prepared(P, self._A, self._floor, attempt)
            solver = self._solvers[attempt]
            status, iterations = solver.solve(), iterations + solver.result.info.iter
            if status == piqp.PIQP_SOLVED and self._certified(solver.result, regularization, attempt.tolerance):
                break
        weights = solver.result.x[self._variable_of_weight]
        return RawSolution(weights, _STATUS.get(status, SolveStatus.FAILED), iterations)

    def error(self, entries: FloatArray, weights: FloatArray) -> float:
        """Tr(WᵀΓW), never below 0, for the entries (q,) of Γ and weights in the order of graph.pattern."""
        x = np.empty(len(self._multiplicity))
        x[self._variable_of_weight] = weights
        return max(0.0, self._form(self._sums(entries), x))

    def _sums(self, entries: FloatArray) -> FloatArray:
        """The upper triangle of the quadratic form in the variables."""
        return np.bincount(self._slot, weights=entries[self._entry]).astype(np.float64, copy=False)

    def _form(self, upper: FloatArray, x: FloatArray) -> float:
        """The quadratic form with this upper triangle at x."""
        terms = upper * x[self._u] * x[self._v]
        return float(2 * terms.sum() - terms[self._diagonal].sum())

    def _certified(self, result: Any, regularization: float, tolerance: float | None) -> bool:
        """Whether x is as close to the optimum as it should be, and feasible up to rounding.

        For every feasible w and all y, with s = P x + Aᵀy,

            ½ wᵀPw ≥ xᵀPw − ½ xᵀPx = ⟨s, w⟩ − 𝟏ᵀy − ½ xᵀPx,

        and ⟨s, w⟩ is at least the sum over all rows of their least s, since rows are in the simplex; a variable of two
        rows has half of its s in each.
        """
        if tolerance is None:
            return True
        P, x, y = self._P, result.x, result.y
        slope = P @ x + P.T @ x - P.data[self._diagonal] * x + self._A.T @ y
        value = self._form(P.data, x) / 2
        shares = (slope / self._multiplicity)[self._variable_of_weight]
        bound = float(np.minimum.reduceat(shares, self._starts).sum() - y.sum()) - value
        optimum = bound - regularization / (1 + regularization)  # ‖W − J‖²_F is ‖W‖²_F − 1
        close = value - bound <= max(tolerance * optimum, TIE_BREAK * len(self._starts))
        violation = max(result.info.primal_res, -float(np.minimum(x, 0).sum()))
        return close and violation <= _VIOLATION


def _prepared(
    P: csc_matrix, A: csc_matrix, floor: tuple[csc_matrix, float] | None, attempt: Attempt
) -> piqp.SparseSolver:
    """A solver for A x = 1, x ≥ 0 and, with a floor (C, c), C x ≥ c."""
    solver = piqp.SparseSolver()
    settings = solver.settings
    # With its own preconditioner, PIQP 0.6.4 ends `update` + `solve` in MAX_ITER with a wrong W; without it, and with
    # Γ scaled by us, a reused solver returns the same bits as a fresh one (tests/mixing/test_gme.py keeps watch).
    settings.preconditioner_iter = 0
    settings.iterative_refinement_static_regularization_eps = attempt.shift
    settings.eps_rel = 0.0
    if attempt.tolerance is None:
        settings.iterative_refinement_always_enabled = True
        # A gap of ε leaves an error of √(ε/λ₀) in W along directions that only the tie-break λ₀ = 1e-8 decides.
        settings.eps_abs = settings.eps_duality_gap_abs = settings.eps_duality_gap_rel = 1e-12
    else:
        settings.delta_init = _PROXIMAL
        settings.eps_abs = settings.eps_duality_gap_rel = min(attempt.tolerance, _LOOSEST)
        settings.eps_duality_gap_abs = TIE_BREAK
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
