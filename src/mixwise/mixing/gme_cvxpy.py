"""GME-opt as the paper poses it, solved by CVXPY: all n² entries are variables, those off the graph set to 0.

    minimize    ‖R W‖²_F   with RᵀR = Γ + λ I
    subject to  W𝟏 = 𝟏,  Wᵀ𝟏 = 𝟏 (kind="sender": Wᵀ𝟏 ≥ c),  0 ≤ W ≤ 1,  W[i, j] = 0 where (i, j) is not an edge.

It is slow and shares no code with `EdgeQP`: the oracle of the tests and the yardstick of the benchmarks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mixwise.graphs import Graph
from mixwise.mixing.gme_qp import RawSolution
from mixwise.mixing.matrix import FloatArray, Kind
from mixwise.mixing.solution import SolveStatus

_STATUS = {
    "infeasible": SolveStatus.INFEASIBLE,
    "unbounded": SolveStatus.UNBOUNDED,
    "optimal_inaccurate": SolveStatus.NOT_CONVERGED,
    "user_limit": SolveStatus.NOT_CONVERGED,
}


@dataclass(frozen=True)
class DenseProgram:
    """The program of one graph; `backend` is the solver that CVXPY calls."""

    graph: Graph
    symmetric: bool = False
    kind: Kind = "doubly"
    least_heard: float = 0.0
    backend: str = "CLARABEL"

    def solve(self, gram: FloatArray, regularization: float) -> RawSolution:
        """Minimize for a Γ (n, n) that the caller has scaled to mean diagonal 1."""
        import cvxpy as cp  # an optional package, slow to import

        n, pattern = self.graph.n, self.graph.pattern
        values, vectors = np.linalg.eigh(gram + regularization * np.eye(n))
        R = (vectors * np.sqrt(values.clip(min=0))).T
        off_graph = np.ones((n, n))
        off_graph[pattern.rows, pattern.cols] = 0
        W, one = cp.Variable((n, n)), np.ones(n)
        columns = one @ W >= self.least_heard if self.kind == "sender" else one @ W == 1
        constraints = [W @ one == 1, columns, W >= 0, W <= 1, cp.multiply(off_graph, W) == 0]
        constraints += [W == W.T] if self.symmetric else []
        problem = cp.Problem(cp.Minimize(cp.sum_squares(R @ W)), constraints)
        problem.solve(solver=self.backend)
        if problem.status != cp.OPTIMAL:
            failed = _STATUS.get(problem.status, SolveStatus.FAILED)
            return RawSolution(np.full(len(pattern.rows), np.nan), failed, 0)
        iterations = int(problem.solver_stats.num_iters or 0)
        return RawSolution(W.value[pattern.rows, pattern.cols], SolveStatus.OPTIMAL, iterations)
