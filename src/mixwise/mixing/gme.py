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
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.graphs.spec import GraphLike, as_graph
from mixwise.mixing.arrays import Rows
from mixwise.mixing.gme_qp import EdgeQP, RawSolution, solve_by_cvxpy
from mixwise.mixing.matrix import FloatArray, Kind, MixingMatrix, check_kind, column_sums, row_sums
from mixwise.mixing.metrics import error_after_mixing, gram_entries, gram_matrix
from mixwise.mixing.neighbor_gme import MAX_ITERATIONS, TOLERANCE, NeighborGme
from mixwise.mixing.neighbor_objective import Blocks
from mixwise.mixing.neighborhoods import exchange_here
from mixwise.mixing.solution import GmeSolution, SolveStatus, finite_sketches, mean_of, scaled_gram, tie_broken

Solver: TypeAlias = Literal["auto", "piqp", "cvxpy", "local"]

SOLVERS: tuple[Solver, ...] = get_args(Solver)
_ROUNDING = 1e-12  # a violation that needs no repair
_EXACT = 1e-9  # how far from 1 the sums of a returned W may be


@dataclass(frozen=True, eq=False)
class GmeProblem:
    """GME-opt on one graph, prepared once and solved for many updates; see `minimize_gme` for the arguments.

    `solve` takes their Gram matrix, `solve_sketches` the updates or sketches of them.

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
    tolerance: float | None = None
    max_iterations: int = MAX_ITERATIONS
    _program: EdgeQP | NeighborGme | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        vars(self)["graph"] = as_graph(self.graph)
        check_kind(self.kind)
        check_solver(self.solver, self.kind)
        if self.tolerance is not None and not 0 < self.tolerance < 1:  # NaN fails every comparison
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
            program = NeighborGme(self.graph, range(self.graph.n), exchange_here)
        elif self.solver != "cvxpy":
            program = EdgeQP(self.graph, self.symmetric, self.kind, self.least_heard, self.tolerance)
        vars(self)["_program"] = program

    def solve(self, gram: npt.ArrayLike | torch.Tensor, regularization: float = 0.0) -> GmeSolution:
        """The best weights for the Gram matrix `gram` (n, n) of the nodes' centered updates."""
        start, program = time.perf_counter(), self._program
        Gamma, scale = scaled_gram(gram, self.graph.n)
        if isinstance(program, NeighborGme):
            return self._by_neighbors(program, program.blocks(Gamma), regularization, start, scale)
        if program is not None:
            return self._on_edges(program, Gamma[program.pairs], regularization, start, scale)
        penalty = tie_broken(regularization, scale)
        raw = solve_by_cvxpy(self.graph, Gamma, penalty, self.symmetric, self.kind, self.least_heard)
        return self._checked(raw, partial(error_after_mixing, Gamma), start, scale)

    def solve_sketches(self, sketches: Rows, regularization: float = 0.0) -> GmeSolution:
        """The best weights for updates, or sketches of them, (n, k), one row per node; they need not be centered.

        It returns the weights of `solve(gram_matrix(sketches))`, without forming an (n, n) array: only inner products
        between nodes that send to a common node are computed. (With solver="cvxpy", which needs all of them, they are.)

        >>> from mixwise.graphs import Graph
        >>> S = np.array([[1.0], [-1.0], [1.0], [-1.0]])
        >>> W = GmeProblem(Graph(4, [(0, 1), (1, 2), (2, 3)]), tolerance=1e-4).solve_sketches(S).W
        >>> print(abs(W.to_dense().T @ S).max().round(3))
        0.0
        """
        start, program = time.perf_counter(), self._program
        S = finite_sketches(sketches, self.graph.n)
        if isinstance(program, NeighborGme):
            blocks = program.look(S)
            assert blocks is not None  # only asked not to look if zero
            return self._by_neighbors(program, blocks, regularization, start)
        if program is None:
            return self.solve(gram_matrix(S), regularization)
        entries = gram_entries(S, *program.pairs)
        scale = mean_of(entries[program.loops])
        return self._on_edges(program, entries / (scale or 1.0), regularization, start, scale)

    def _by_neighbors(
        self, program: NeighborGme, blocks: Blocks, regularization: float, start: float, scale: float = 1.0
    ) -> GmeSolution:
        tolerance = TOLERANCE if self.tolerance is None else self.tolerance
        solution, _ = program.solve(blocks, regularization, tolerance, self.max_iterations, self.symmetric)
        return replace(solution, objective=solution.objective * scale, seconds=time.perf_counter() - start)

    def _on_edges(
        self, program: EdgeQP, entries: FloatArray, regularization: float, start: float, scale: float
    ) -> GmeSolution:
        raw = program.solve(entries, tie_broken(regularization, scale))
        return self._checked(raw, lambda W: program.error(entries, W.weights), start, scale)

    def _checked(
        self, raw: RawSolution, error: Callable[[MixingMatrix], float], start: float, scale: float
    ) -> GmeSolution:
        """The solution whose weights are checked, made feasible, and leave this error for the scaled Γ."""
        W, residual = self._feasible(raw)
        status = SolveStatus.INVALID if W is None and raw.status is SolveStatus.OPTIMAL else raw.status
        objective = math.nan if W is None else error(W) * scale
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
    graph: GraphLike,
    *,
    regularization: float = 0.0,
    symmetric: bool = False,
    kind: Kind = "doubly",
    least_heard: float = 0.0,
    solver: Solver = "auto",
    tolerance: float | None = None,
    max_iterations: int = MAX_ITERATIONS,
) -> GmeSolution:
    """The W on the graph that minimizes the gradient mixing error.

        minimize    Tr(Wᵀ Γ W) + λ s ‖W − J‖²_F     (s: mean diagonal of Γ)
        subject to  W𝟏 = 𝟏,  Wᵀ𝟏 = 𝟏,  W ≥ 0,  W[i, j] = 0 where i cannot send to j

    Args:
        gram: Γ (n, n), symmetric positive semidefinite; errors up to 1e-6 · Tr Γ are repaired.
        graph: the graph whose arcs and loops carry the weights, a spec such as "ring:8", or a networkx graph.
        regularization: λ ≥ 0; larger values trade mixing error for consensus.
        symmetric: whether to require W = Wᵀ; needs an undirected graph.
        kind: "doubly", or "sender": only rows sum to 1 (push-sum, on directed graphs).
        least_heard: c of kind="sender", in [0, 1]: the least sum of a column.
        solver: "auto" and "piqp": a quadratic program on the edges (`EdgeQP`). "cvxpy": the paper's own formulation,
            slow, needs the package cvxpy. "local": the program that nodes solve by talking to their neighbors only
            (`NeighborGme`), on connected undirected graphs.
        tolerance: how far from the optimum the solver may stop, relative to the optimum. By default 1e-3 with
            solver="local", and as close as rounding allows otherwise; "cvxpy" is always as close as it gets.
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
    problem = _problem(
        as_graph(graph), symmetric=symmetric, kind=kind, least_heard=least_heard, solver=solver, **limits
    )
    return problem.solve(gram, regularization)


def check_solver(solver: str, kind: Kind) -> None:
    """Raise `MixingError` if the solver does not exist, is not installed, or finds no weights of this kind."""
    if solver not in SOLVERS:
        raise MixingError(f"solver = {solver!r}; choose {', '.join(SOLVERS)}")
    if solver == "cvxpy" and find_spec("cvxpy") is None:
        raise MixingError("solver = 'cvxpy' needs the package cvxpy: pip install cvxpy, or choose piqp")
    if solver == "local" and kind != "doubly":
        raise MixingError(f'solver="local" finds doubly stochastic weights only; for kind = {kind!r} use solver="auto"')
