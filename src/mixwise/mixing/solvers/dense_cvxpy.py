"""GME-opt as the paper poses it, handed to CVXPY: all n² entries are variables, those off the graph set to 0.

    minimize    ‖R W‖²_F   with RᵀR = Γ + λ I
    subject to  W𝟏 = 𝟏,  Wᵀ𝟏 = 𝟏 (kind="sender": Wᵀ𝟏 ≥ c),  0 ≤ W ≤ 1,  W[i, j] = 0 where (i, j) is no edge.

Slow, and independent of our own layout: the oracle of the tests and the yardstick of the benchmarks.
"""

from __future__ import annotations

import numpy as np

from mixwise.graphs import Graph
from mixwise.mixing.matrix import FloatArray, Kind
from mixwise.mixing.solution import SolveStatus
from mixwise.mixing.solvers.edge_qp import RawSolution

_STATUS = {  # of CVXPY, besides "optimal"
    "user_limit": SolveStatus.NOT_CONVERGED,
    "infeasible": SolveStatus.INFEASIBLE,
    "unbounded": SolveStatus.UNBOUNDED,
    "optimal_inaccurate": SolveStatus.NOT_CONVERGED,
}


def solve(
    graph: Graph,
    gram: FloatArray,
    regularization: float,
    symmetric: bool = False,
    kind: Kind = "doubly",
    least_heard: float = 0.0,
    solver: str = "CLARABEL",
) -> RawSolution:
    """Minimize for a Γ that the caller has scaled to mean diagonal 1."""
    import cvxpy as cp  # takes a second to import, and only this function needs it

    n, pattern = graph.n, graph.pattern
    values, vectors = np.linalg.eigh(gram + regularization * np.eye(n))
    R = (vectors * np.sqrt(values.clip(min=0))).T
    off_graph = np.ones((n, n))
    off_graph[pattern.rows, pattern.cols] = 0

    W = cp.Variable((n, n))
    one = np.ones(n)
    heard = one @ W >= least_heard if kind == "sender" else one @ W == 1
    constraints = [W @ one == 1, heard, W >= 0, W <= 1, cp.multiply(off_graph, W) == 0]
    if symmetric:
        constraints.append(W == W.T)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(R @ W)), constraints)
    problem.solve(solver=solver)
    if problem.status != cp.OPTIMAL:
        return RawSolution(np.full(len(pattern.rows), np.nan), _STATUS.get(problem.status, SolveStatus.FAILED), 0)
    iterations = problem.solver_stats.num_iters or 0
    return RawSolution(W.value[pattern.rows, pattern.cols], SolveStatus.OPTIMAL, int(iterations))
