"""GME-opt: the mixing weights that leave the least of the nodes' disagreement (paper, eq. GME-opt-Γ).

    minimize    Tr(Wᵀ Γ W) + λ s ‖W − J‖²_F     (s: mean diagonal of Γ, so that λ has no unit)
    subject to  W doubly stochastic, W ≥ 0, W[i, j] = 0 where i cannot send to j; W may be asymmetric.

Since W has sum n, ‖W − J‖²_F = ‖W‖²_F − 1: the two penalties have the same minimizer.

kind="sender", for push-sum on directed graphs, asks for row sums of 1 only, and for column sums of at least c:

    subject to  W𝟏 = 𝟏,  Wᵀ𝟏 ≥ c 𝟏,  W ≥ 0,  W[i, j] = 0 where i cannot send to j.

With c = 0 the error can be 0 for a bad reason: where all nodes send all they have to one node, the sum of the centered
updates arrives there, and nothing anywhere else. Push-sum divides by what arrived, so leave it something to divide by:
λ > 0, or c > 0. The larger c is, the smaller the choice; c = 1 is the doubly stochastic program.
W = I is feasible on every graph and for both kinds, so there is always an optimum.
"""

from __future__ import annotations

import importlib.util
import math
import time
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.mixing.matrix import FloatArray, Kind, MixingMatrix, column_sums, row_sums
from mixwise.mixing.metrics import error_after_mixing
from mixwise.mixing.neighbor_gme import MAX_ITERATIONS, NeighborGme, check_limits, check_regularization, need_doubly
from mixwise.mixing.neighbor_objective import TIE_BREAK
from mixwise.mixing.solution import GmeSolution, SolveStatus
from mixwise.mixing.solvers import dense_cvxpy
from mixwise.mixing.solvers.edge_qp import EdgeQP, RawSolution
from mixwise.mixing.tree_sweeps import exchange_here

Solver: TypeAlias = Literal["auto", "piqp", "cvxpy", "local"]

SOLVERS = ("auto", "piqp", "cvxpy", "local")
_REPAIR = 1e-6  # how far from symmetric positive semidefinite Γ may be, as a share of its trace
_ROUNDING = 1e-12  # a violation that needs no repair
_EXACT = 1e-9  # how far from 1 the sums of a returned W may be


class GmeProblem:
    """GME-opt on one graph, laid out once and solved for many Gram matrices.

    >>> from mixwise.graphs import Graph
    >>> ring = Graph(3, [(0, 1), (1, 2), (2, 0)])
    >>> solution = GmeProblem(ring).solve(np.eye(3) - 1 / 3)
    >>> print(solution.status, solution.W.to_dense().round(6)[0])
    solved [0.333333 0.333333 0.333333]
    """

    def __init__(
        self,
        graph: Graph,
        *,
        symmetric: bool = False,
        kind: Kind = "doubly",
        least_heard: float = 0.0,
        solver: Solver = "auto",
        tolerance: float = 1e-3,
        max_iterations: int = MAX_ITERATIONS,
    ) -> None:
        check_solver(solver)
        if symmetric and graph.directed:
            raise MixingError("symmetric weights need an undirected graph; drop symmetric=True or the directions")
        if kind not in ("doubly", "sender"):
            raise MixingError(f'kind = {kind!r}; a mixing matrix is "doubly" or "sender" stochastic')
        if symmetric and kind == "sender":
            raise MixingError('symmetric weights whose rows sum to 1 are doubly stochastic; drop kind="sender"')
        if not 0 <= least_heard <= 1:  # NaN fails every comparison
            raise MixingError(f"least_heard = {least_heard}; column sums average 1, so their least lies in [0, 1]")
        if least_heard and kind != "sender":
            raise MixingError(
                f'least_heard = {least_heard}, but columns sum to 1 anyway; drop it or take kind="sender"'
            )
        self.graph, self.symmetric, self.solver = graph, symmetric, solver
        self.kind: Kind = kind
        self.least_heard = float(least_heard)
        self._limits = check_limits(tolerance, max_iterations)
        qp = solver in ("auto", "piqp")
        self._edge_qp = EdgeQP(graph, symmetric, kind, self.least_heard) if qp else None
        self._neighbors: NeighborGme | None = None
        if solver == "local":
            need_doubly(kind)
            self._neighbors = NeighborGme(graph, range(graph.n), exchange_here)

    def solve(self, gram: npt.ArrayLike | torch.Tensor, regularization: float = 0.0) -> GmeSolution:
        """The best weights for the Gram matrix `gram` (n, n) of the nodes' centered updates."""
        start = time.perf_counter()
        check_regularization(regularization)
        Gamma, scale = scaled_gram(gram, self.graph.n)
        if self._neighbors is not None:
            tolerance, max_iterations = self._limits
            solution, _ = self._neighbors.solve(
                self._neighbors.blocks(Gamma),
                regularization,
                tolerance=tolerance,
                max_iterations=max_iterations,
                symmetric=self.symmetric,
            )
            return replace(solution, objective=solution.objective * scale, seconds=time.perf_counter() - start)
        # Γ = 0 says nothing about the data: any λ > 0 then gives the W of smallest norm.
        penalty = 1.0 if scale == 0 else max(regularization, TIE_BREAK)
        raw = (
            self._edge_qp.solve(Gamma, penalty)
            if self._edge_qp is not None
            else dense_cvxpy.solve(self.graph, Gamma, penalty, self.symmetric, self.kind, self.least_heard)
        )
        W, residual = self._feasible(raw)
        status = raw.status
        if W is None and status is SolveStatus.OPTIMAL:
            status = SolveStatus.INVALID
        objective = math.nan if W is None else error_after_mixing(Gamma, W) * scale
        return GmeSolution(W, objective, status, raw.iterations, time.perf_counter() - start, residual)

    def _feasible(self, raw: RawSolution) -> tuple[MixingMatrix | None, float]:
        """The solver's weights made exactly feasible, and how far they were from it."""
        w, graph = raw.weights, self.graph
        rows, cols = graph.pattern.rows, graph.pattern.cols
        heard = column_sums(graph, w)
        columns = np.abs(heard - 1).max() if self.kind == "doubly" else self.least_heard - heard.min()
        residual = float(max(np.abs(row_sums(graph, w) - 1).max(), columns, -w.min()))
        if raw.status is not SolveStatus.OPTIMAL or not residual <= 1e-5:
            return None, residual
        w = np.maximum(w, 0)
        if residual <= _ROUNDING:  # the usual case: nothing to repair, and checked two lines above
            return MixingMatrix._prechecked(graph, w, _EXACT, self.kind), residual
        for _ in range(3):
            if self.symmetric:  # scaling D W D with D = diag(sums)^(-1/2) keeps W symmetric
                root = np.sqrt(row_sums(graph, w))
                w = w / (root[rows] * root[cols])
            else:  # Sinkhorn: zeros stay zeros, and the small errors vanish to rounding
                w = w / row_sums(graph, w)[rows]
                if self.kind == "doubly":
                    w = w / column_sums(graph, w)[cols]
        try:
            return MixingMatrix(graph, w, self.kind, _EXACT), residual
        except MixingError:
            return None, residual


def minimize_gme(
    gram: npt.ArrayLike | torch.Tensor,
    graph: Graph,
    *,
    regularization: float = 0.0,
    symmetric: bool = False,
    kind: Kind = "doubly",
    least_heard: float = 0.0,
    solver: Solver = "auto",
    tolerance: float = 1e-3,
    max_iterations: int = MAX_ITERATIONS,
) -> GmeSolution:
    """The W on the graph, doubly stochastic unless told otherwise, that minimizes Tr(WᵀΓW) + λ s ‖W − J‖²_F.

    Args:
        gram: Γ (n, n), symmetric positive semidefinite; errors up to 1e-6 · Tr Γ are repaired.
        graph: which entries of W may be non-zero.
        regularization: λ ≥ 0; larger values trade mixing error for consensus.
        symmetric: whether the two directions of an edge must have the same weight; needs an undirected graph.
        kind: "doubly", or "sender": only rows sum to 1 (push-sum, on directed graphs).
        least_heard: c of kind="sender", from 0 to 1: the least sum of a column.
        solver: "piqp" (what "auto" takes), "cvxpy": the paper's own formulation, slow, needs the package cvxpy, or
            "local": what nodes find that talk only to their neighbors (`NeighborGme`), on connected undirected graphs.
        tolerance, max_iterations: of solver="local": how far from the optimum it may stop, relative to it, and after
            how many iterations it stops anyway, which its status tells.

    Example:
        >>> from mixwise.graphs import Graph
        >>> G = np.array([[1.0], [-1.0], [1.0], [-1.0]])             # two kinds of data, side by side on a chain
        >>> W = minimize_gme(G @ G.T, Graph(4, [(0, 1), (1, 2), (2, 3)])).W
        >>> print(abs(W.to_dense().T @ G).max().round(4))            # every node ends at the average, 0
        0.0

    Reference: "Data-heterogeneity-aware Mixing for Decentralized Learning", Section 5.2.
    """
    problem = _problem(graph, symmetric, kind, least_heard, solver, tolerance, max_iterations)
    return problem.solve(gram, regularization)


def check_solver(solver: str) -> None:
    """An error if the solver does not exist or is not installed."""
    if solver not in SOLVERS:
        raise MixingError(f"solver = {solver!r}; choose {', '.join(SOLVERS)}")
    if solver == "cvxpy" and importlib.util.find_spec("cvxpy") is None:
        raise MixingError(
            "solver = 'cvxpy' needs the package cvxpy, which is not installed; pip install cvxpy, or choose piqp, "
            "which finds the same optimum"
        )


@lru_cache(maxsize=8)
def _problem(
    graph: Graph,
    symmetric: bool,
    kind: Kind,
    least_heard: float,
    solver: Solver,
    tolerance: float,
    max_iterations: int,
) -> GmeProblem:
    return GmeProblem(
        graph,
        symmetric=symmetric,
        kind=kind,
        least_heard=least_heard,
        solver=solver,
        tolerance=tolerance,
        max_iterations=max_iterations,
    )


def scaled_gram(gram: npt.ArrayLike | torch.Tensor, n: int) -> tuple[FloatArray, float]:
    """Γ scaled to mean diagonal 1 and made exactly symmetric positive semidefinite, and the scale."""
    if isinstance(gram, torch.Tensor):
        gram = gram.detach().cpu().double().numpy()  # NumPy does not know bfloat16
    Gamma: npt.NDArray[Any] = np.asarray(gram, dtype=np.float64)
    if Gamma.shape != (n, n):
        raise MixingError(
            f"the Gram matrix has shape {Gamma.shape}, but the graph has {n} nodes; it must be ({n}, {n})"
        )
    largest = float(np.abs(Gamma).max())
    if not math.isfinite(largest):
        i, j = np.argwhere(~np.isfinite(Gamma))[0]
        raise MixingError(f"Γ[{i}, {j}] = {Gamma[i, j]}; a Gram matrix is finite: look for NaN in node {i}'s update")
    if largest == 0:
        return Gamma, 0.0
    scale = float((Gamma.diagonal() / largest).sum()) / n * largest
    if scale <= 0:
        raise MixingError(f"Tr Γ = {scale * n:.3g}; a Gram matrix has a positive trace: pass G @ G.T of centered rows")
    Gamma = Gamma / scale
    skew = float((Gamma - Gamma.T).max())  # the difference is antisymmetric: its largest entry is its largest modulus
    if skew > _REPAIR * n:
        raise MixingError(
            f"Γ is not symmetric: its entries differ from their mirror images by up to {skew / n:.1e} · Tr Γ, "
            f"allowed is {_REPAIR:g}; pass G @ G.T of centered rows"
        )
    Gamma = (Gamma + Gamma.T) / 2
    try:  # positive semidefinite up to a tenth of the tie-break: the program is convex as it is
        shifted = Gamma.copy()
        shifted.flat[:: n + 1] += 0.1 * TIE_BREAK
        np.linalg.cholesky(shifted)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(Gamma)
        if values[0] < -_REPAIR * n:
            raise MixingError(
                f"Γ is indefinite: its smallest eigenvalue is {values[0] / n:.1e} · Tr Γ, allowed is {-_REPAIR:g}; "
                f"pass G @ G.T of centered rows"
            ) from None
        Gamma = (vectors * values.clip(min=0)) @ vectors.T
    return Gamma, scale
