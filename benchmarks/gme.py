"""GME-opt: `minimize_gme` as a user calls it, against CVXPY on all n² entries of W.

Each round has several Gram matrices of random updates; ours solves them, then CVXPY does, then the next round.

The yardstick is the paper's formulation, `solver="cvxpy"`: ‖R W‖²_F over all entries of W, with Clarabel. The JSON file
also has it with OSQP, CVXPY's default for quadratic programs, and a formulation that is kinder to CVXPY, with both
solvers: vec(W)ᵀ (I ⊗ Γ) vec(W), which spares it n² variables and n² constraints. On 256 nodes only that one ends in
reasonable time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
from scipy import sparse

from benchmarks.measure import Measurement, fastest, in_turns, in_words, medians, speedup
from mixwise.graphs import Graph, ring, social_network, torus
from mixwise.mixing import gram_matrix, minimize_gme
from mixwise.mixing.gme import TIE_BREAK
from mixwise.mixing.gme_qp import solve_by_cvxpy
from mixwise.seeding import numpy_generator

SKETCH_DIM = 100  # Γ comes from sketches of this length: its rank is at most 100
PAPER = "CVXPY, Clarabel"
TIME_LIMIT = 180.0  # seconds for one solve of CVXPY


@dataclass(frozen=True)
class Case:
    name: str
    graph: Graph
    bar: float
    rounds: int
    grams: int  # Gram matrices per round for ours
    grams_cvxpy: int  # and how many of them for each way to use CVXPY
    large: bool = False  # one solve of CVXPY takes a minute: see `yardsticks`


CASES = [
    Case("ring 16", ring(16), 80, rounds=15, grams=10, grams_cvxpy=5),
    Case("torus 4 × 4", torus(4, 4), 50, rounds=15, grams=10, grams_cvxpy=5),
    Case("social network 32", social_network(), 50, rounds=7, grams=10, grams_cvxpy=3),
    Case("torus 16 × 16", torus(16, 16), 300, rounds=1, grams=20, grams_cvxpy=1, large=True),
]


def measurements() -> Iterator[Measurement]:
    """One speed-up per graph."""
    for case in CASES:
        yield measured(case)


def measured(case: Case) -> Measurement:
    """The speed-up over the paper's formulation; where that takes too long, over the fastest other one."""
    graph = case.graph
    grams = [random_gram(graph.n, seed) for seed in range(case.rounds * case.grams)]
    rounds = [grams[i : i + case.grams] for i in range(0, len(grams), case.grams)]
    ours = partial(minimize_gme, graph=graph)
    theirs = yardsticks(graph, case.large)

    # Untimed: imports, and laying out the program of the graph. On small graphs CVXPY has its first call too.
    minimize_gme(grams[0], graph)
    for call in theirs.values():
        call(grams[0]) if not case.large else call_on_a_small_graph()
    objectives: dict[str, list[float]] = {name: [] for name in theirs}

    def keeping(name: str, gram: np.ndarray) -> None:
        objectives[name].append(theirs[name](gram))

    contenders: dict[str, tuple[Callable[[np.ndarray], object], int]] = {"mixwise": (ours, case.grams)}
    contenders |= {name: (partial(keeping, name), case.grams_cvxpy) for name in theirs}
    seconds = in_turns(rounds, contenders)

    times = medians(seconds)
    speedups = {name: speedup(seconds[name], seconds["mixwise"]) for name in theirs}
    yardstick = PAPER if PAPER in speedups else min(speedups, key=speedups.__getitem__)
    solved = [minimize_gme(gram, graph).objective for turn in rounds for gram in turn[: case.grams_cvxpy]]
    differences = {
        name: max(abs(a - b) / b for a, b in zip(solved, values, strict=True)) for name, values in objectives.items()
    }
    return Measurement(
        f"GME-opt, {case.name}",
        speedups[yardstick],
        "×",
        case.bar,
        "higher",
        in_words(times["mixwise"]),
        f"{in_words(times[yardstick])} ({yardstick})",
        {
            "median_seconds": times,
            "speedups": speedups,
            # A busy machine interrupts long calls more often than short ones: the fastest calls tell without it.
            "speedups_of_fastest_calls": {n: fastest(seconds[n]) / fastest(seconds["mixwise"]) for n in theirs},
            "yardstick": yardstick,
            "relative_objective_difference": differences,
            # After CVXPY's turn the caches are cold, as they are between two steps of training.
            "mixwise_first_call_of_a_round_seconds": median(turn[0] for turn in seconds["mixwise"]),
            "calls": {name: sum(map(len, turns)) for name, turns in seconds.items()},
        },
    )


def random_gram(n: int, seed: int) -> np.ndarray:
    """Γ of n sketched updates with independent normal entries."""
    return gram_matrix(numpy_generator(seed, "benchmark", "updates", n).standard_normal((n, SKETCH_DIM)))


def yardsticks(graph: Graph, large: bool) -> dict[str, Callable[[np.ndarray], float]]:
    """Ways to use CVXPY, each from Γ to the objective it found.

    In trials on a torus of 256 nodes, ‖R W‖²_F took 50 s with OSQP, the quadratic form 40 s with either solver; on 144
    nodes ‖R W‖²_F took 5 s with OSQP and 19 s with Clarabel. So on a large graph only the quadratic form is timed.
    """
    ways: dict[str, Callable[[np.ndarray], float]] = {
        "CVXPY quad_form, OSQP": partial(quadratic_form, graph=graph, solver="OSQP"),
        "CVXPY quad_form, Clarabel": partial(quadratic_form, graph=graph, solver="CLARABEL"),
    }
    if not large:
        ways[PAPER] = lambda gram: minimize_gme(gram, graph, solver="cvxpy").objective
        ways["CVXPY, OSQP"] = partial(paper_form, graph=graph, solver="OSQP")
    return ways


def paper_form(gram: np.ndarray, graph: Graph, solver: str) -> float:
    """The paper's formulation with another solver than minimize_gme(…, solver="cvxpy") takes."""
    scale = np.trace(gram) / graph.n
    w = solve_by_cvxpy(graph, gram / scale, TIE_BREAK, backend=solver).weights
    W = np.zeros((graph.n, graph.n))
    W[graph.pattern.rows, graph.pattern.cols] = w
    return objective(gram, W)


def quadratic_form(gram: np.ndarray, graph: Graph, solver: str) -> float:
    """minimize vec(W)ᵀ (I ⊗ (Γ + λ₀ I)) vec(W) over W doubly stochastic, 0 ≤ W ≤ 1, zero off the graph."""
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
    problem.solve(solver=solver, time_limit=TIME_LIMIT)
    if problem.status != cp.OPTIMAL:
        raise RuntimeError(f"CVXPY with {solver} ended with {problem.status} on {n} nodes; raise TIME_LIMIT")
    return objective(gram, W.value)


def objective(gram: np.ndarray, W: np.ndarray) -> float:
    """Tr(WᵀΓW)."""
    return float((W * (gram @ W)).sum())


def call_on_a_small_graph() -> None:
    """Loads CVXPY and its solvers without the cost of a large program."""
    graph = ring(4)
    for call in yardsticks(graph, large=True).values():
        call(random_gram(4, seed=0))
