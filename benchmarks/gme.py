"""Optimal mixing weights (GME-opt): the paper's program with CVXPY, and solvers on the edges."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from mixwise.graphs import Graph, ring, social_network, torus
from mixwise.mixing import GmeProblem, gram_matrix, minimize_gme
from mixwise.mixing.gme_qp import EdgeQP, solve_by_cvxpy
from mixwise.mixing.metrics import gram_entries
from mixwise.mixing.solution import TIE_BREAK
from mixwise.seeding import numpy_generator

from .measure import Benchmark, Contestant, Contestants, Missing

SKETCH_DIM = 100
TOLERANCE = 1e-4
PAPER, QUICKER = "CVXPY, Clarabel, as in the paper", "CVXPY quad_form, OSQP"
REUSED = "PIQP, set up once"
PIQP_TOLERANCES = ("eps_abs", "eps_rel", "eps_duality_gap_abs", "eps_duality_gap_rel")
INPUTS = 20


def benchmarks(tiny: bool = False) -> Iterator[Benchmark]:
    for name, graph, bar in (
        ("ring of 16", ring(16), 80),
        ("torus 4 × 4", torus(4, 4), 50),
        ("social network of 32", social_network(), 50),
    ):
        question = f"Γ to W on a {name}: how much faster than the paper's program on all n² entries?"
        yield Benchmark(question, partial(against_cvxpy, ring(6) if tiny else graph), bar, PAPER)
    sides = (3, 3) if tiny else (32, 32)
    for kind in ("independent", "ten classes"):
        yield Benchmark(
            f"Sketches ({kind}) to W on a torus 32 × 32, relative error ≤ 1e-4: not slower than the fastest solver?",
            partial(against_solvers, torus(*sides), kind), 1.0, ("PIQP", "OSQP", "Clarabel"), rounds=15,
        )  # fmt: skip


def large(tiny: bool = False) -> Iterator[Benchmark]:
    """One solve of CVXPY takes a minute."""
    question = "Γ to W on a torus 16 × 16: how much faster than CVXPY on all n² entries, in the form that ends there?"
    graph = torus(3, 3) if tiny else torus(16, 16)
    yield Benchmark(question, partial(against_cvxpy, graph, large=True), 300, QUICKER, rounds=1)


# --- the paper's way ---
def against_cvxpy(graph: Graph, large: bool = False) -> Contestants:
    """‖R W‖²_F over all n² entries, and the form vec(W)ᵀ (I ⊗ Γ) vec(W), which spares CVXPY n² variables.

    On 256 nodes the first takes minutes, so that only the second is measured.
    """
    draws = (numpy_generator(i, "benchmark", "updates", graph.n) for i in range(INPUTS))
    grams = [gram_matrix(draw.standard_normal((graph.n, SKETCH_DIM))) for draw in draws]

    def contestant(solve: Callable[[np.ndarray], object]) -> Contestant:
        return Contestant(lambda i: solve(grams[i % INPUTS]))

    theirs: dict[str, Callable[[np.ndarray], object]] = {QUICKER: partial(quadratic_form, graph=graph)}
    if not large:
        theirs = {PAPER: partial(minimize_gme, graph=graph, solver="cvxpy")} | theirs
        theirs["CVXPY, OSQP"] = lambda gram: solve_by_cvxpy(graph, gram, TIE_BREAK, backend="OSQP")
    found: dict[str, Contestant | Missing] = {"mixwise": contestant(partial(minimize_gme, graph=graph))}
    for name, solve in theirs.items():
        found[name] = contestant(solve) if importlib.util.find_spec("cvxpy") else Missing("pip install cvxpy")
    return found


def quadratic_form(gram: np.ndarray, graph: Graph) -> float:
    """Minimize vec(W)ᵀ (I ⊗ (Γ + λ₀ I)) vec(W) over W doubly stochastic, 0 ≤ W ≤ 1, zero off the graph."""
    import cvxpy as cp

    n, pattern = graph.n, graph.pattern
    scaled = gram / (np.trace(gram) / n) + TIE_BREAK * np.eye(n)
    off_graph = np.ones((n, n))
    off_graph[pattern.rows, pattern.cols] = 0
    W, one = cp.Variable((n, n)), np.ones(n)
    P = cp.psd_wrap(sparse.kron(sparse.eye_array(n), scaled, format="csc"))
    problem = cp.Problem(
        cp.Minimize(cp.quad_form(cp.vec(W, order="F"), P)),
        [W @ one == 1, one @ W == 1, W >= 0, W <= 1, cp.multiply(off_graph, W) == 0],
    )
    problem.solve(solver="OSQP", time_limit=180.0)
    if problem.status != cp.OPTIMAL:
        raise RuntimeError(f"CVXPY ended with {problem.status} on {n} nodes")
    return float(problem.value)


# --- the same program on the edges, from sketches ---
def against_solvers(graph: Graph, kind: str) -> Contestants:
    """Sketches to weights. The solvers get Γ on the edges, and tolerances that are enough for the relative error."""
    sketches, program = [drawn_sketches(graph.n, kind, i) for i in range(INPUTS)], EdgesOnly(graph)
    exact, early = GmeProblem(graph), GmeProblem(graph, tolerance=TOLERANCE)
    local = GmeProblem(graph, solver="local", tolerance=TOLERANCE)
    optimum = exact.solve_sketches(sketches[0]).objective

    def ours(problem: GmeProblem) -> Contestant:
        require_close("mixwise", problem.solve_sketches(sketches[0]).objective / optimum)
        return Contestant(lambda i: problem.solve_sketches(sketches[i % INPUTS]))

    found: dict[str, Contestant | Missing] = {"mixwise": ours(early), "mixwise, solver=local": ours(local)}
    for name, solve in {"PIQP": by_piqp, "OSQP": by_osqp, "Clarabel": by_clarabel}.items():
        if importlib.util.find_spec(name.lower()) is None:
            found[name] = Missing(f"pip install {name.lower()}")
            continue
        require_close(name, program.objective(solve(*program.fill(sketches[0])), sketches[0]) / optimum)
        found[name] = Contestant(lambda i, solve=solve: solve(*program.fill(sketches[i % INPUTS])))
    reused = ReusedPiqp()
    require_close(REUSED, program.objective(reused(*program.fill(sketches[0])), sketches[0]) / optimum)
    found[REUSED] = Contestant(lambda i: reused(*program.fill(sketches[i % INPUTS])))
    return found | {"mixwise, to 1e-12": ours(exact)}


def require_close(name: str, ratio: float) -> None:
    if not abs(ratio - 1) <= TOLERANCE:
        raise RuntimeError(f"{name} is off by {abs(ratio - 1):.1e}; tighten its tolerances")


def drawn_sketches(n: int, kind: str, seed: int) -> np.ndarray:
    """Sketches (n, k) of updates that have nothing in common, or of nodes with one of ten classes each."""
    draw = numpy_generator(seed, "benchmark", "sketches", n)
    S = draw.standard_normal((n, SKETCH_DIM))
    return S if kind == "independent" else 0.3 * S + draw.standard_normal((10, SKETCH_DIM))[draw.integers(0, 10, n)]


class EdgesOnly:
    """½ xᵀPx, A x = 1, x ≥ 0: the program of `EdgeQP`, filled from sketches in the same way."""

    def __init__(self, graph: Graph) -> None:
        self._layout = layout = EdgeQP(graph)
        self.P, self.A = layout._P.copy(), layout._A

    def fill(self, S: np.ndarray) -> tuple[sparse.csc_matrix, sparse.csc_matrix]:
        entries = gram_entries(S, *self._layout.pairs)
        self.P.data[:] = 2 * self._layout._sums(entries) / entries[self._layout.loops].mean()
        self.P.data[self._layout._diagonal] += TIE_BREAK
        return self.P, self.A

    def objective(self, x: np.ndarray, S: np.ndarray) -> float:
        """Σ_j w_jᵀ Γ w_j."""
        return self._layout.error(gram_entries(S, *self._layout.pairs), x[self._layout._variable_of_weight])


def by_piqp(P: sparse.csc_matrix, A: sparse.csc_matrix) -> np.ndarray:
    solver = piqp_solver(P, A)
    solver.solve()
    return solver.result.x


class ReusedPiqp:
    """PIQP as we call it: set up once, then updated. That needs a setting without which its updates go wrong."""

    def __init__(self) -> None:
        self.solver = None

    def __call__(self, P: sparse.csc_matrix, A: sparse.csc_matrix) -> np.ndarray:
        if self.solver is None:
            self.solver = piqp_solver(P, A, preconditioner_iter=0)
        else:
            self.solver.update(P=P)
        self.solver.solve()
        return self.solver.result.x


def piqp_solver(P: sparse.csc_matrix, A: sparse.csc_matrix, **options: int) -> Any:
    import piqp

    solver, n = piqp.SparseSolver(), P.shape[0]
    for name, value in {**dict.fromkeys(PIQP_TOLERANCES, TOLERANCE), **options}.items():
        setattr(solver.settings, name, value)
    solver.setup(P, np.zeros(n), A, np.ones(A.shape[0]), None, None, None, np.zeros(n), None)
    return solver


def by_osqp(P: sparse.csc_matrix, A: sparse.csc_matrix) -> np.ndarray:
    import osqp

    solver, n, height = osqp.OSQP(), P.shape[0], A.shape[0]
    least = np.concatenate([np.ones(height), np.zeros(n)])
    most = np.concatenate([np.ones(height), np.full(n, np.inf)])
    rows = sparse.csc_matrix(sparse.vstack([A, sparse.eye_array(n)]))
    solver.setup(P, np.zeros(n), rows, least, most, verbose=False, eps_abs=1e-6, eps_rel=1e-6, max_iter=50_000)
    return np.array(solver.solve(raise_error=True).x)


def by_clarabel(P: sparse.csc_matrix, A: sparse.csc_matrix) -> np.ndarray:
    import clarabel

    settings, n, height = clarabel.DefaultSettings(), P.shape[0], A.shape[0]
    settings.verbose, settings.max_threads = False, 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = TOLERANCE
    rows = sparse.csc_matrix(sparse.vstack([A, -sparse.eye_array(n)]))
    cones = [clarabel.ZeroConeT(height), clarabel.NonnegativeConeT(n)]
    bounds = np.concatenate([np.ones(height), np.zeros(n)])
    return np.array(clarabel.DefaultSolver(P, np.zeros(n), rows, bounds, cones, settings).solve().x)
