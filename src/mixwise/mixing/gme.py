"""GME-opt: the mixing weights that leave the least disagreement between the nodes' updates (paper, eq. GME-opt-Γ).

    minimize    Tr(Wᵀ Γ W) + λ s ‖W − J‖²_F     (s: mean diagonal of Γ, so that λ has no unit)
    subject to  W𝟏 = 𝟏,  Wᵀ𝟏 = 𝟏,  W ≥ 0,  W[i, j] = 0 where i cannot send to j; W may be asymmetric.

Since the entries of W sum to n, ‖W − J‖²_F = ‖W‖²_F − 1: both penalties have the same minimizer.

With kind="sender", for push-sum on directed graphs, only rows sum to 1, and columns to at least c (`least_heard`):

    subject to  W𝟏 = 𝟏,  Wᵀ𝟏 ≥ c 𝟏,  W ≥ 0,  W[i, j] = 0 where i cannot send to j.

With c = 0 the error can be 0 for a bad reason: if all nodes send everything to one node, it receives the sum of the
centered updates, which is 0, and all others receive nothing. Push-sum divides by what arrived, so use λ > 0 or c > 0.
The larger c, the smaller the feasible set; c = 1 is the doubly stochastic program. W = I is feasible on every graph and
for both kinds, so an optimum always exists.
"""

from __future__ import annotations

import math
import time
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.mixing.gme_qp import EdgeQP, RawSolution, solve_by_cvxpy
from mixwise.mixing.matrix import FloatArray, Kind, MixingMatrix, check_kind, column_sums, row_sums
from mixwise.mixing.metrics import error_after_mixing
from mixwise.mixing.neighbor_gme import MAX_ITERATIONS, NeighborGme
from mixwise.mixing.neighborhoods import exchange_here
from mixwise.mixing.solution import TIE_BREAK, GmeSolution, SolveStatus, check_regularization, need_doubly, tie_broken

Solver: TypeAlias = Literal["auto", "piqp", "cvxpy", "local"]

SOLVERS: tuple[Solver, ...] = get_args(Solver)
_REPAIR = 1e-6  # how far from symmetric positive semidefinite Γ may be, as a fraction of its trace
_ROUNDING = 1e-12  # a violation that needs no repair
_EXACT = 1e-9  # how far from 1 the sums of a returned W may be
_REMEDY = "pass G @ G.T of centered rows"


@dataclass(frozen=True, eq=False)
class GmeProblem:
    """GME-opt on one graph, prepared once and solved for many Gram matrices; see `minimize_gme` for the arguments.

    >>> from mixwise.graphs import Graph
    >>> ring = Graph(3, [(0, 1), (1, 2), (2, 0)])
    >>> solution = GmeProblem(ring).solve(np.eye(3) - 1 / 3)
    >>> print(solution.status, solution.W.to_dense().round(6)[0])
    solved [0.333333 0.333333 0.333333]
    """

    graph: Graph
    _: KW_ONLY
    symmetric: bool = False
    kind: Kind = "doubly"
    least_heard: float = 0.0
    solver: Solver = "auto"
    tolerance: float = 1e-3
    max_iterations: int = MAX_ITERATIONS
    _program: EdgeQP | NeighborGme | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_solver(self.solver)
        check_kind(self.kind)
        if not 0 < self.tolerance < 1:  # NaN fails every comparison
            raise MixingError(f"tolerance = {self.tolerance}; a distance relative to the optimum lies in (0, 1)")
        if self.max_iterations < 1:
            raise MixingError(f"max_iterations = {self.max_iterations}; a solve takes at least 1")
        if self.symmetric and self.graph.directed:
            raise MixingError("symmetric weights need an undirected graph; drop symmetric=True or the directions")
        if self.symmetric and self.kind == "sender":
            raise MixingError('symmetric weights whose rows sum to 1 are doubly stochastic; drop kind="sender"')
        if not 0 <= self.least_heard <= 1:
            raise MixingError(f"least_heard = {self.least_heard}; column sums average 1, so their least lies in [0, 1]")
        if self.least_heard and self.kind != "sender":
            raise MixingError(f'least_heard = {self.least_heard}, but columns sum to 1; drop it or use kind="sender"')
        program: EdgeQP | NeighborGme | None = None
        if self.solver == "local":
            need_doubly(self.kind)
            program = NeighborGme(self.graph, range(self.graph.n), exchange_here)
        elif self.solver != "cvxpy":
            program = EdgeQP(self.graph, self.symmetric, self.kind, self.least_heard)
        vars(self)["_program"] = program

    def solve(self, gram: npt.ArrayLike | torch.Tensor, regularization: float = 0.0) -> GmeSolution:
        """The best weights for the Gram matrix `gram` (n, n) of the nodes' centered updates."""
        start = time.perf_counter()
        check_regularization(regularization)
        Gamma, scale = scaled_gram(gram, self.graph.n)
        if isinstance(self._program, NeighborGme):
            blocks, limits = self._program.blocks(Gamma), (self.tolerance, self.max_iterations)
            solution, _ = self._program.solve(blocks, regularization, *limits, self.symmetric)
            return replace(solution, objective=solution.objective * scale, seconds=time.perf_counter() - start)
        penalty = tie_broken(regularization, scale)
        if self._program is None:
            raw = solve_by_cvxpy(self.graph, Gamma, penalty, self.symmetric, self.kind, self.least_heard)
        else:
            raw = self._program.solve(Gamma, penalty)
        W, residual = self._feasible(raw)
        status = SolveStatus.INVALID if W is None and raw.status is SolveStatus.OPTIMAL else raw.status
        objective = math.nan if W is None else error_after_mixing(Gamma, W) * scale
        return GmeSolution(W, objective, status, raw.iterations, time.perf_counter() - start, residual)

    def _feasible(self, raw: RawSolution) -> tuple[MixingMatrix | None, float]:
        """The solver's weights made exactly feasible, and their largest violation before."""
        w, graph = raw.weights, self.graph
        rows, cols = graph.pattern.rows, graph.pattern.cols
        heard = column_sums(graph, w)
        columns = np.abs(heard - 1).max() if self.kind == "doubly" else self.least_heard - heard.min()
        residual = float(max(np.abs(row_sums(graph, w) - 1).max(), columns, -w.min()))
        if raw.status is not SolveStatus.OPTIMAL or not residual <= 1e-5:
            return None, residual
        w = np.maximum(w, 0)
        if residual <= _ROUNDING:  # the usual case, checked two lines above
            return MixingMatrix._prechecked(graph, w, self.kind, _EXACT), residual
        for _ in range(3):
            if self.symmetric:  # D W D with D = diag(row sums)^(-1/2) stays symmetric
                root = np.sqrt(row_sums(graph, w))
                w = w / (root[rows] * root[cols])
            else:  # Sinkhorn scaling: zeros stay zeros, and the small errors vanish
                w = w / row_sums(graph, w)[rows]
                w = w / column_sums(graph, w)[cols] if self.kind == "doubly" else w
        try:
            return MixingMatrix(graph, w, self.kind, _EXACT), residual
        except MixingError:
            return None, residual


_problem = lru_cache(maxsize=8)(GmeProblem)


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
    """The W on the graph that minimizes the gradient mixing error.

        minimize    Tr(Wᵀ Γ W) + λ s ‖W − J‖²_F     (s: mean diagonal of Γ)
        subject to  W𝟏 = 𝟏,  Wᵀ𝟏 = 𝟏,  W ≥ 0,  W[i, j] = 0 where i cannot send to j

    Args:
        gram: Γ (n, n), symmetric positive semidefinite; errors up to 1e-6 · Tr Γ are repaired.
        graph: the graph whose arcs and loops carry the weights.
        regularization: λ ≥ 0; larger values trade mixing error for consensus.
        symmetric: whether to require W = Wᵀ; needs an undirected graph.
        kind: "doubly", or "sender": only rows sum to 1 (push-sum, on directed graphs).
        least_heard: c of kind="sender", in [0, 1]: the least sum of a column.
        solver: "auto" and "piqp": a quadratic program on the edges (`EdgeQP`). "cvxpy": the paper's own formulation,
            slow, needs the package cvxpy. "local": the program that nodes solve by talking to their neighbors only
            (`NeighborGme`), on connected undirected graphs.
        tolerance: of solver="local": how far from the optimum it may stop, relative to the optimum.
        max_iterations: of solver="local": where it stops anyway; its status is then STOPPED_AT_LIMIT.

    Example:
        >>> from mixwise.graphs import Graph
        >>> G = np.array([[1.0], [-1.0], [1.0], [-1.0]])             # two kinds of data, alternating on a chain
        >>> W = minimize_gme(G @ G.T, Graph(4, [(0, 1), (1, 2), (2, 3)])).W
        >>> print(abs(W.to_dense().T @ G).max().round(4))            # every node reaches the average, 0
        0.0

    Reference: "Data-heterogeneity-aware Mixing for Decentralized Learning", Section 5.2.
    """
    limits = {"tolerance": tolerance, "max_iterations": max_iterations}
    problem = _problem(graph, symmetric=symmetric, kind=kind, least_heard=least_heard, solver=solver, **limits)
    return problem.solve(gram, regularization)


def check_solver(solver: str) -> None:
    """Raise `MixingError` if the solver does not exist or is not installed."""
    if solver not in SOLVERS:
        raise MixingError(f"solver = {solver!r}; choose {', '.join(SOLVERS)}")
    if solver == "cvxpy" and find_spec("cvxpy") is None:
        raise MixingError("solver = 'cvxpy' needs the package cvxpy: pip install cvxpy, or choose piqp")


def scaled_gram(gram: npt.ArrayLike | torch.Tensor, n: int) -> tuple[FloatArray, float]:
    """Γ (n, n) scaled to mean diagonal 1 and made exactly symmetric positive semidefinite, and the scale."""
    if isinstance(gram, torch.Tensor):
        gram = gram.detach().cpu().double().numpy()  # NumPy has no bfloat16
    Gamma: npt.NDArray[Any] = np.asarray(gram, dtype=np.float64)
    if Gamma.shape != (n, n):
        raise MixingError(f"the Gram matrix has shape {Gamma.shape}, but for {n} nodes it must be ({n}, {n})")
    largest = float(np.abs(Gamma).max())
    if not math.isfinite(largest):
        i, j = np.argwhere(~np.isfinite(Gamma))[0]
        raise MixingError(f"Γ[{i}, {j}] = {Gamma[i, j]}; a Gram matrix is finite: look for NaN in node {i}'s update")
    if largest == 0:
        return Gamma, 0.0
    scale = float((Gamma.diagonal() / largest).sum()) / n * largest
    if scale <= 0:
        raise MixingError(f"Tr Γ = {scale * n:.3g}; a Gram matrix has a positive trace: {_REMEDY}")
    Gamma = Gamma / scale
    skew = float((Gamma - Gamma.T).max())  # the difference is antisymmetric: its largest entry is its largest modulus
    if skew > _REPAIR * n:
        difference = f"by up to {skew / n:.1e} · Tr Γ, allowed is {_REPAIR:g}"
        raise MixingError(f"Γ is not symmetric: Γ and Γᵀ differ {difference}; {_REMEDY}")
    Gamma = (Gamma + Gamma.T) / 2
    try:  # positive semidefinite up to a tenth of the tie-break: the program is convex as it is
        shifted = Gamma.copy()
        shifted.flat[:: n + 1] += 0.1 * TIE_BREAK
        np.linalg.cholesky(shifted)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(Gamma)
        if values[0] < -_REPAIR * n:
            smallest = f"{values[0] / n:.1e} · Tr Γ, allowed is {-_REPAIR:g}"
            raise MixingError(f"Γ is indefinite: its smallest eigenvalue is {smallest}; {_REMEDY}") from None
        Gamma = (vectors * values.clip(min=0)) @ vectors.T
    return Gamma, scale
