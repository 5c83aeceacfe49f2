"""GME-opt: optimal, feasible to rounding, and honest when it is not solved.

Two judges, neither of which shares a line with the solver. CVXPY with CLARABEL solves the paper's program. And a
certificate needs no solver: by Birkhoff's theorem a linear function of doubly stochastic W on a graph is smallest at a
permutation V on the graph, which an assignment algorithm finds, so for convex f

    f(W) − min f ≤ ⟨∇f(W), W⟩ − min_V ⟨∇f(W), V⟩.

Scaled: Γ with mean diagonal 1, so Tr Γ = n.
"""

import json
import sys
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import mixwise.graphs as g
import mixwise.mixing as mx
from builders import HARD_GRAMS, assert_feasible, cases, hard_gram, normal_rows, peak_memory, refused, scaled
from builders import gme_objective as f
from mixwise.errors import MixingError, SolverError
from mixwise.graphs import Graph
from strategies import connected_graphs, gram_matrices, graphs

TIE_BREAK = 1e-8  # λ₀: it may cost λ₀ (‖W*‖²_F − ‖W‖²_F) ≤ λ₀ n of the scaled objective, which is 1e-8 · Tr Γ
LAMBDAS = [0.0, 1e-8, 1e-6, 1e-3, 0.05, 1.0, 100.0, 1e6]


# --- the judges ---
def on_graph(values: np.ndarray, graph: Graph) -> np.ndarray:
    """The entries of arcs and loops, and ∞ elsewhere: what an assignment on the graph may cost."""
    found = np.full(values.shape, np.inf)
    found[graph.pattern.rows, graph.pattern.cols] = values[graph.pattern.rows, graph.pattern.cols]
    return found


def cvxpy_gme(Gamma, graph: Graph, penalty=0.0, symmetric=False, least_heard=None, same_image_as=None):
    """min Tr(WᵀΓW) + λ ‖W‖²_F as the paper hands it to CVXPY, and a W that attains it.

    Columns sum to 1, or to at least `least_heard`. With `same_image_as` = W*: min ‖W‖_F over R W = R W* instead.
    """
    n = graph.n
    values, vectors = np.linalg.eigh((Gamma + penalty * np.eye(n)) / (1 + penalty))
    R = (vectors * np.sqrt(values.clip(min=0))).T[values > 1e-12 * values[-1]]
    off_graph = np.ones((n, n))
    off_graph[graph.pattern.rows, graph.pattern.cols] = 0
    W = cp.Variable((n, n))
    columns = cp.sum(W, axis=0) == 1 if least_heard is None else cp.sum(W, axis=0) >= least_heard
    constraints = [columns, cp.sum(W, axis=1) == 1, W >= 0, cp.multiply(off_graph, W) == 0]
    if symmetric:
        constraints.append(W == W.T)
    objective = R @ W
    if same_image_as is not None:
        constraints.append(R @ same_image_as == R @ W)
        objective = W
    problem = cp.Problem(cp.Minimize(cp.sum_squares(objective)), constraints)
    problem.solve(solver=cp.CLARABEL)
    assert problem.status == cp.OPTIMAL
    return float(problem.value) * (1 + penalty), W.value


def certificate(
    Gamma: np.ndarray, W: np.ndarray, graph: Graph, penalty: float, symmetric=False, kind="doubly"
) -> float:
    """An upper bound of f(W) − min f.

    With row sums only, a linear function of W is least where every row puts all its weight on its smallest entry.
    """
    slope = 2 * (Gamma @ W + penalty * W)
    if kind == "sender":
        return float((slope * W).sum() - on_graph(slope, graph).min(axis=1).sum())
    if symmetric:  # the symmetric W are the (V + Vᵀ)/2: ⟨slope, (V + Vᵀ)/2⟩ = ⟨(slope + slopeᵀ)/2, V⟩
        slope = (slope + slope.T) / 2
    V = linear_sum_assignment(on_graph(slope, graph))
    return float((slope * W).sum() - slope[V].sum())


def assert_solved(solution: mx.GmeSolution, graph: Graph, kind="doubly", least_heard=0.0) -> np.ndarray:
    assert json.dumps(solution.status) == '"solved"'  # as records show it
    assert solution.solved
    assert min(solution.iterations, solution.seconds) >= 0
    assert solution.residual <= 1e-5
    return assert_feasible(solution, graph, kind, least_heard)


def solved(gram, graph: Graph, *, kind="doubly", least_heard=0.0, **options) -> np.ndarray:
    """W, feasible, symmetric to the last bit if it must be (of CVXPY: nearly), and as good as the solution says."""
    solution = mx.minimize_gme(gram, graph, kind=kind, least_heard=least_heard, **options)
    W = assert_solved(solution, graph, kind, least_heard)
    if options.get("symmetric"):
        assert solution.W.is_symmetric if options.get("solver") != "cvxpy" else np.abs(W - W.T).max() <= 1e-6
    assert solution.objective == pytest.approx(f(np.asarray(gram, float), W), rel=1e-6, abs=1e-12 * np.trace(gram))
    return W


def assert_optimal(gram, graph, regularization=0.0, **shape) -> np.ndarray:
    """Feasible, and within the tie-break of the optimum by the certificate."""
    W, Gamma, n = solved(gram, graph, regularization=regularization, **shape), scaled(gram), graph.n
    used = max(regularization, TIE_BREAK) if np.any(gram) else 1.0
    # The program that is really solved, with its tie-break, to the 1e-12 of the solver; 100 times that for the sums.
    assert certificate(Gamma, W, graph, used, **shape) <= 1e-10 * (1 + used) * n
    if regularization == 0 and np.any(gram):
        # Without the tie-break. ⟨λ₀∇‖W‖², W − V⟩ ≤ 2 λ₀ ‖W‖_F ‖W − V‖_F ≤ 2√2 λ₀ n adds to the line above.
        assert certificate(Gamma, W, graph, 0.0, **shape) <= 3 * TIE_BREAK * n
    return W


SYMMETRIC, SENDER = {"symmetric": True}, {"kind": "sender"}
SHAPES = [{}, SYMMETRIC, SENDER, *(SENDER | {"least_heard": c} for c in (0.2, 0.9, 1.0))]


def shapes(graph: Graph, of=SHAPES):
    """The kinds of weights that a graph can have."""
    return st.sampled_from([shape for shape in of if shape is not SYMMETRIC or not graph.directed])


# --- the optimum ---
@settings(max_examples=80)
@given(data=st.data(), graph=connected_graphs(1, 10) | graphs(1, 10))
def test_objective_is_the_one_cvxpy_finds(data, graph):
    """Relative to the optimum; 1e-7 n of Tr Γ = n is what CLARABEL leaves where the optimum is almost 0."""
    gram = data.draw(gram_matrices(graph.n, min_rank=1, centered=data.draw(st.booleans()) and graph.n > 1))
    shape = data.draw(shapes(graph))
    penalty = data.draw(st.sampled_from([0.0, 0.05, 1.0] if "kind" in shape else LAMBDAS))
    least_heard = shape.get("least_heard", 0.0) if "kind" in shape else None
    optimum, _ = cvxpy_gme(scaled(gram), graph, penalty, "symmetric" in shape, least_heard)
    for solver, accuracy in (("piqp", 1e-6), ("cvxpy", 1e-5)):
        W = solved(gram, graph, regularization=penalty, solver=solver, **shape)
        assert f(scaled(gram), W, penalty) == pytest.approx(optimum, rel=accuracy, abs=1e-7 * graph.n)


@settings(max_examples=400)
@given(data=st.data(), graph=connected_graphs(1, 24) | graphs(1, 14), penalty=st.sampled_from(LAMBDAS))
def test_optimal_by_certificate(data, graph, penalty):
    """On any graph: directed or not, in one piece or many, isolated nodes among them."""
    gram = data.draw(gram_matrices(graph.n, centered=data.draw(st.booleans())))
    assert_optimal(gram, graph, penalty, **data.draw(shapes(graph, [{}, SYMMETRIC, SENDER])))


TWO_RINGS, ONE_WAY = Graph(12, [*g.ring(6).edges, *(g.ring(6).edge_array + 6)]), g.directed_ring(11)
ONE_WAY_CHAIN = Graph(6, [(i, i + 1) for i in range(5)], directed=True)
HARD_GRAPHS = [g.complete(32), g.complete(5), g.random_connected(16), g.star(60), g.ring(21), g.torus(6, 4)]
HARD_GRAPHS += [g.social_network(), TWO_RINGS, Graph(9, [(0, 1), (1, 2)]), ONE_WAY, ONE_WAY_CHAIN]


@pytest.mark.parametrize("graph", HARD_GRAPHS, ids=str)
@pytest.mark.parametrize("kind", HARD_GRAMS)
def test_hard_instances(kind, graph):
    gram = hard_gram(kind, graph.n)
    assert_optimal(gram, graph)
    assert_optimal(gram, graph, regularization=0.05)
    if not graph.directed:
        assert_optimal(gram, graph, symmetric=True)


# --- of all optima, the smallest ---
@pytest.mark.parametrize("graph", [g.ring(3), g.ring(8), g.torus(3, 3), g.complete(7), g.complete(1)])
@pytest.mark.parametrize("symmetric", [False, True])
def test_no_heterogeneity_gives_the_weights_that_mix(graph, symmetric):
    """Γ = 0: the smallest ‖W‖_F. Where all nodes are alike, that is the same weight everywhere, by symmetry."""
    W = assert_optimal(np.zeros((graph.n, graph.n)), graph, symmetric=symmetric)
    np.testing.assert_allclose(W, mx.uniform(graph).to_dense(), atol=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_tie_break_is_the_smallest_optimum(seed):
    """Two stages of CVXPY: the optimum W*, then min ‖W‖_F over RW = RW*, which is the set of all optima.

    Since ‖RW‖²_F is strictly convex in RW, all optima have the same RW. Γ has rank 1 or 2, so they are many.
    """
    rng = np.random.default_rng(seed)
    graph = [g.complete(6), g.random_connected(8, 0.6, seed), g.torus(3, 3), g.star(7)][seed % 4]
    gram = mx.gram_matrix(rng.integers(-2, 3, (graph.n, 1 + seed % 2)).astype(float))
    Gamma = scaled(gram)
    optimum, some = cvxpy_gme(Gamma, graph)
    _, smallest = cvxpy_gme(Gamma, graph, same_image_as=some)
    W = solved(gram, graph)
    assert f(Gamma, W) <= optimum + 2 * TIE_BREAK * graph.n
    # A minimizer of f + λ₀‖W‖² is never larger than any minimizer of f. CLARABEL's equalities hold to 1e-8, and the
    # norm is about as sensitive to them as √1e-8.
    assert np.linalg.norm(W) <= np.linalg.norm(smallest) + 1e-4
    np.testing.assert_allclose(W, smallest, atol=2e-3)


@given(data=st.data(), graph=connected_graphs(2, 12))
def test_a_large_regularization_forgets_the_data(data, graph):
    gram = data.draw(gram_matrices(graph.n, min_rank=1))
    no_data = solved(np.zeros_like(gram), graph)
    for penalty, distance in ((1e6, 1e-4 * graph.n), (1e300, 1e-7)):  # ‖Γ‖ ≤ n; and nothing overflows
        np.testing.assert_allclose(solved(gram, graph, regularization=penalty), no_data, atol=distance)


# --- units ---
@pytest.mark.parametrize("solver", ["piqp", "local"])
@given(data=st.data(), graph=connected_graphs(1, 12), power=st.integers(-900, 800), penalty=st.sampled_from(LAMBDAS))
def test_the_unit_of_the_gradients_does_not_matter(solver, data, graph, power, penalty):
    """Powers of 2 change no digit, so W is the same to the last bit, λ included, and the error scales with Γ."""
    gram, options = data.draw(gram_matrices(graph.n)), {"regularization": penalty, "solver": solver}
    here, there = (mx.minimize_gme(g, graph, **options) for g in (gram, gram * 2.0**power))
    assert (here.W, there.objective) == (there.W, here.objective * 2.0**power)


# --- what comes in ---
@pytest.mark.numerics
def test_torch_tensors():
    G = torch.randn(8, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gram = (G - G.mean(0)) @ (G - G.mean(0)).T
    before, expected = gram.clone(), mx.minimize_gme(gram.numpy(), g.ring(8))
    for given_gram in (gram, gram.clone().requires_grad_(), gram.tolist()):
        assert mx.minimize_gme(given_gram, g.ring(8)).W == expected.W
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert mx.minimize_gme(torch.eye(8, dtype=dtype), g.ring(8)).W == mx.minimize_gme(np.eye(8), g.ring(8)).W
    assert torch.equal(gram, before)  # the caller's Γ is as it was


@given(graph=connected_graphs(2, 24), seed=st.integers(0, 2**32 - 1), rank=st.integers(1, 6), offset=st.booleans())
def test_float32_sketches_are_repaired(graph, seed, rank, offset):
    """Γ summed in float32 is indefinite by rounding; its W is as good for the true Γ as rounding allows."""
    rng = np.random.default_rng(seed)
    S = rng.standard_normal((graph.n, rank)).astype(np.float32) + np.float32(3 if offset else 0)
    S = S - S.mean(axis=0)
    if not S.any():
        return
    rough = S @ S.T
    assert rough.dtype == np.float32
    W = assert_solved(mx.minimize_gme(rough, graph), graph)
    exact = scaled(S.astype(np.float64) @ S.T.astype(np.float64))
    # |Tr Wᵀ(Γ − Γ′)W| ≤ ‖Γ − Γ′‖₂ ‖W‖²_F, twice, with an error of a few 6e-8 n in the scaled Γ and ‖W‖²_F ≤ n.
    assert f(exact, W) <= f(exact, mx.minimize_gme(exact, graph).W.to_dense()) + 1e-6 * graph.n**2


@settings(max_examples=30)
@given(data=st.data(), graph=connected_graphs(3, 10), kind=st.sampled_from(["skew", "indefinite"]))
def test_errors_up_to_a_millionth_of_the_trace_are_repaired_and_larger_ones_refused(data, graph, kind):
    gram = data.draw(gram_matrices(graph.n, min_rank=1))
    if kind == "skew":
        error = np.zeros_like(gram)
        error[0, 1], error[1, 0] = 0.5, -0.5  # Γ − Γᵀ gets an entry of 1
    else:  # the centered rows have Γ𝟏 = 0, so that −𝟏𝟏ᵀ/n makes an eigenvalue of −1
        error = np.full_like(gram, -1 / graph.n)
    trace = np.trace(gram)
    W = assert_solved(mx.minimize_gme(gram + 0.9e-6 * trace * error, graph), graph)
    best = mx.minimize_gme(gram, graph).objective
    assert f(gram, W) <= best + 4e-6 * graph.n * trace  # 2 ‖error‖₂ ‖W‖²_F, and room for the eigenvalues cut off
    rule = "not symmetric" if kind == "skew" else "indefinite"
    with pytest.raises(MixingError, match=rf"{rule}.* · Tr Γ, allowed is -?1e-06; pass G @ G\.T of centered rows"):
        mx.minimize_gme(gram + 1.2e-6 * trace * error, graph)


def changed(array: np.ndarray, value: float) -> np.ndarray:
    """The array with another number at (2, 1)."""
    array[2, 1] = value
    return array


@cases(
    "gram, message",
    (changed(np.eye(4), np.nan), r"Γ\[2, 1\] = nan; a Gram matrix is finite: look for NaN in node 2's update"),
    (changed(np.eye(4), np.inf), r"Γ\[2, 1\] = inf; a Gram matrix is finite"),
    (changed(np.eye(4), 0.5), r"Γ is not symmetric: .* by up to 1\.2e-01 · Tr Γ, allowed is 1e-06; pass G @ G\.T"),
    (-np.eye(4), r"Tr Γ = -4; a Gram matrix has a positive trace: pass G @ G\.T of centered rows"),
    (np.ones((4, 4)) - np.eye(4), r"Tr Γ = 0; a Gram matrix has a positive trace"),
    (np.diag([3.0, 1, 1, -1]), r"Γ is indefinite: its smallest eigenvalue is -2\.5e-01 · Tr Γ, allowed is -1e-06"),
    (np.eye(5), r"the Gram matrix has shape \(5, 5\), but for 4 nodes it must be \(4, 4\)"),
    (np.ones((4, 3)), r"the Gram matrix has shape \(4, 3\), but"),
)
@pytest.mark.parametrize("solver", ["piqp", "cvxpy", "local"])
def test_gram_matrices_that_are_none_are_refused(gram, message, solver):
    refused(MixingError, message, mx.minimize_gme, gram, g.ring(4), solver=solver)


@cases(
    "options, message",
    *(({"regularization": x}, f"regularization = {x}; λ is a finite number, 0 or") for x in (-1.0, np.nan, np.inf)),
    ({"solver": "osqp"}, "solver = 'osqp'; choose auto, piqp, cvxpy, local"),
    ({"graph": g.directed_ring(4), "symmetric": True}, "need an undirected graph; drop symmetric=True"),
    ({"kind": "receiver"}, r"kind = 'receiver'; a mixing matrix is \"doubly\" or \"sender\""),
    ({"kind": "sender", "symmetric": True}, 'drop kind="sender"'),
    ({"kind": "sender", "least_heard": 1.5}, r"least_heard = 1.5; .* lies in \[0, 1\]"),
    ({"least_heard": 0.5}, 'least_heard = 0.5, but columns sum to 1; drop it or use kind="sender"'),
)
def test_options_that_contradict_each_other_are_refused(options, message):
    refused(MixingError, message, mx.minimize_gme, np.eye(4), **{"graph": g.ring(4)} | options)


def test_a_solver_that_is_not_installed_is_refused_before_anything_runs(mixwise, monkeypatch):
    monkeypatch.setitem(sys.modules, "cvxpy", None)  # what Python finds where it is not installed
    with pytest.raises(MixingError, match="'cvxpy' needs the package cvxpy: pip install cvxpy, or choose piqp"):
        mx.GmeProblem(g.ring(5), solver="cvxpy")
    done = mixwise("run", "quadratics", "ha-dsgd.policy.solver=cvxpy", "--out", "run")
    assert done.returncode == 2
    assert "pip install cvxpy" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not Path("run").exists()


@pytest.mark.parametrize("solver", ["auto", "piqp", "cvxpy", "local"])
def test_the_solver_that_is_named_is_the_one_that_solves(solver, monkeypatch):
    """With all the options of the problem."""
    calls = []
    owners = {"EdgeQP": (mx.gme.EdgeQP, "solve"), "NeighborGme": (mx.gme.NeighborGme, "solve")}
    for owner, (home, name) in {**owners, "CVXPY": (mx.gme, "solve_by_cvxpy")}.items():
        watch = lambda f, owner: lambda *given: calls.append((owner, given)) or f(*given)  # noqa: E731
        monkeypatch.setattr(home, name, watch(getattr(home, name), owner))
    sender = {"kind": "sender", "least_heard": 0.25} if solver != "local" else {}
    mx.GmeProblem(g.ring(5), solver=solver, **sender).solve(np.eye(5))
    assert [owner for owner, _ in calls] == [{"cvxpy": "CVXPY", "local": "NeighborGme"}.get(solver, "EdgeQP")]
    assert solver != "cvxpy" or calls[0][1][3:] == (False, "sender", 0.25)


# --- reuse ---
@pytest.mark.parametrize("graph", [g.ring(16), g.random_connected(16), g.social_network(), ONE_WAY])
@pytest.mark.parametrize(
    "options", [{}, {"symmetric": True}, {"kind": "sender", "least_heard": 0.2}, {"tolerance": 1e-4}], ids=str
)
def test_a_problem_reused_returns_the_same_bits_as_a_fresh_one(graph, options):
    if "symmetric" in options and graph.directed:
        return
    rng = np.random.default_rng(0)
    kinds = [kind for kind in HARD_GRAMS for _ in range(6)]
    reused = mx.GmeProblem(graph, **options)
    for k in rng.permutation(len(kinds)):  # 60 others, easy and hard, λ and unit changing too
        reused.solve(hard_gram(kinds[k], graph.n) * 10.0 ** rng.integers(-30, 30), rng.choice(LAMBDAS))
    reused.solve(np.zeros((graph.n, graph.n)))
    for kind in HARD_GRAMS:
        gram = hard_gram(kind, graph.n)
        again, fresh = reused.solve(gram), mx.GmeProblem(graph, **options).solve(gram)
        assert again.W == fresh.W
        assert (again.objective, again.iterations) == (fresh.objective, fresh.iterations)
        assert mx.minimize_gme(gram, graph, **options).W == fresh.W


def test_equal_graphs_share_a_prepared_problem():
    """`minimize_gme` does not lay out the program again for a graph that it has seen."""
    from mixwise.mixing.gme import _problem

    mx.minimize_gme(np.eye(5), g.ring(5))
    laid_out = _problem.cache_info().misses
    mx.minimize_gme(np.eye(5) - 0.2, Graph(5, [(4, 0), (0, 1), (1, 2), (2, 3), (3, 4)]), regularization=1.0)
    assert _problem.cache_info().misses == laid_out


# --- from sketches ---
def classes(n: int, k: int, seed: int = 0) -> np.ndarray:
    """Sketches (n, k) of nodes that hold one of ten classes each."""
    rng = np.random.default_rng(seed)
    return 0.3 * rng.standard_normal((n, k)) + rng.standard_normal((10, k))[rng.integers(0, 10, n)]


SKETCHED = [g.ring(16), g.torus(8, 8), g.random_connected(24, 0.2, 1), ONE_WAY, ONE_WAY_CHAIN, TWO_RINGS, g.complete(1)]


@pytest.mark.parametrize("graph", SKETCHED, ids=str)
@pytest.mark.parametrize("options", [{}, {"symmetric": True}, {"kind": "sender", "least_heard": 0.2}], ids=str)
@pytest.mark.parametrize("k", [1, 9, 100, 5000])
def test_sketches_give_the_same_bits_as_their_gram_matrix(graph, options, k):
    """On 64 nodes, 5,000 columns are two blocks."""
    if "symmetric" in options and graph.directed:
        return
    problem = mx.GmeProblem(graph, **options)
    for S in (normal_rows(graph.n, k, seed=k), classes(graph.n, k) + 5, np.zeros((graph.n, k))):
        for given_sketches in (S, torch.from_numpy(S), torch.from_numpy(S).float()):
            whole, gram = problem.solve_sketches(given_sketches, 0.01), mx.gram_matrix(given_sketches)
            expected = problem.solve(gram, 0.01)
            assert whole.W == expected.W
            assert (whole.status, whole.iterations) == (expected.status, expected.iterations)
            assert whole.objective == pytest.approx(expected.objective, rel=1e-12)
            assert whole.objective == pytest.approx(f(gram, whole.W.to_dense()), rel=1e-9, abs=1e-14 * np.trace(gram))


def test_no_array_of_all_pairs_of_nodes_is_formed():
    graph, S = g.ring(3000), normal_rows(3000, 10)
    problem = mx.GmeProblem(graph)
    solution, peak = peak_memory(lambda: problem.solve_sketches(S))
    assert solution.solved
    assert peak < graph.n**2  # a byte per pair


@pytest.mark.parametrize("solver", ["local", "cvxpy"])
def test_every_solver_takes_sketches(solver):
    S = classes(9, 5)
    whole, expected = mx.GmeProblem(g.torus(3, 3), solver=solver).solve_sketches(S), mx.gram_matrix(S)
    best = mx.minimize_gme(expected, g.torus(3, 3)).objective
    assert_feasible(whole, g.torus(3, 3))
    assert best * (1 - 1e-6) <= whole.objective <= best * (1 + 1e-3)
    assert whole.objective == pytest.approx(f(expected, whole.W.to_dense()), rel=1e-9)


@cases(
    "S, message",
    *(
        (changed(np.ones((4, 3)), x), f"sketch of node 2 contains {y}; .* at most 1e\\+140: look for NaN in node 2's")
        for x, y in ((np.nan, "±nan"), (-np.inf, "±inf"), (-1e200, r"±1e\+200"))
    ),
    (np.ones((5, 3)), r"sketches have shape \(5, 3\), but for 4 nodes it must be \(4, k\), one row per node"),
    (np.ones(4), r"sketches have shape \(4,\), but"),
)
@pytest.mark.parametrize("solver", ["piqp", "cvxpy", "local"])
def test_sketches_that_are_none_are_refused(S, message, solver):
    refused(MixingError, message, mx.GmeProblem(g.ring(4), solver=solver).solve_sketches, S)


# --- a tolerance ---
@pytest.mark.parametrize("options", [{}, {"symmetric": True}, {"kind": "sender"}], ids=str)
@pytest.mark.parametrize("tolerance", [0.5, 1e-2, 1e-4, 1e-6])
def test_the_distance_from_the_optimum_is_at_most_the_tolerance(options, tolerance):
    """Relative to the optimum, or to the cost of the tie-break: 1e-8 of 1 + λ per node."""
    early = 0
    for graph in (g.ring(16), g.torus(8, 8), g.social_network(), g.star(30), g.random_connected(16)):
        exact, loose = mx.GmeProblem(graph, **options), mx.GmeProblem(graph, tolerance=tolerance, **options)
        grams = [hard_gram(kind, graph.n) for kind in HARD_GRAMS]
        grams += [mx.gram_matrix(rows(graph.n, 100)) for rows in (normal_rows, classes)]
        for Gamma in map(scaled, grams):
            for penalty in (0.0, 0.02):
                best, found = exact.solve(Gamma, penalty), loose.solve(Gamma, penalty)
                W = assert_feasible(found, graph, options.get("kind", "doubly"))
                used = max(penalty, TIE_BREAK)
                optimum, reached = (f(Gamma, V, used) - used for V in (best.W.to_dense(), W))  # λ ‖W − J‖²
                assert reached - optimum <= max(tolerance * optimum, TIE_BREAK * graph.n * (1 + used))
                early += found.iterations < best.iterations
    assert early > 60  # of 120


def test_where_the_distance_is_not_certified_the_program_is_solved_to_the_end(monkeypatch):
    S = classes(16, 20)
    exact = mx.GmeProblem(g.ring(16)).solve_sketches(S)
    monkeypatch.setattr(mx.gme_qp, "_VIOLATION", 0.0)
    again = mx.GmeProblem(g.ring(16), tolerance=1e-4).solve_sketches(S)
    assert again.W == exact.W
    assert again.iterations > exact.iterations  # both solves count


# --- a solve that fails says so ---
def solved_by_shifts(monkeypatch, shifts) -> mx.GmeSolution:
    """A solve in which PIQP has enough iterations with these shifts only."""
    prepared = mx.gme_qp._prepared

    def limited(P, A, floor, attempt):
        solver = prepared(P, A, floor, attempt)
        solver.settings.max_iter = 250 if attempt.shift in shifts else 2
        return solver

    monkeypatch.setattr(mx.gme_qp, "_prepared", limited)
    return mx.GmeProblem(g.ring(6)).solve(mx.gram_matrix(normal_rows(6, 3)))


@pytest.mark.parametrize("only", mx.gme_qp._SHIFTS)
def test_every_shift_is_tried_until_one_solves(monkeypatch, only):
    assert solved_by_shifts(monkeypatch, {only}).solved


def test_a_solver_out_of_iterations_reports_it(monkeypatch):
    solution = solved_by_shifts(monkeypatch, {})
    assert solution.status == "iteration limit reached"
    assert (solution.solved, solution.usable) == (False, False)
    assert np.isnan(solution.objective)
    rule = r"not solved: iteration limit reached after \d+ iterations .*keep the prev"
    refused(SolverError, rule, getattr, solution, "W")


@pytest.mark.parametrize("flaw", ["sums", "negative", "nan"])
def test_weights_that_break_the_rules_are_not_returned(monkeypatch, flaw):
    """Even if the solver reports success."""
    weights = mx.metropolis_hastings(g.ring(4)).weights.copy()
    weights[0] = {"sums": 0.5, "negative": -0.2, "nan": np.nan}[flaw]
    monkeypatch.setattr(mx.gme_qp.EdgeQP, "solve", lambda *_: mx.gme_qp.RawSolution(weights, mx.SolveStatus.OPTIMAL, 3))
    solution = mx.GmeProblem(g.ring(4)).solve(np.eye(4))
    assert solution.status == "the solution violates the constraints"
    refused(SolverError, "violates the constraints after 3 iterations", getattr, solution, "W")


@pytest.mark.parametrize("symmetric", [False, True])
def test_small_violations_of_the_solver_are_rounded_away(monkeypatch, symmetric):
    """Sums off by more than 1e-9 still give sums of 1 within 1e-9, and W stays symmetric if it has to be."""
    torus, noise = g.torus(3, 3), 1e-9 * np.random.default_rng(0).uniform(-1, 1, (9, 9))
    noise = noise + noise.T if symmetric else noise
    raw = mx.gme_qp.RawSolution(
        mx.uniform(torus).weights + noise[torus.pattern.rows, torus.pattern.cols], mx.SolveStatus.OPTIMAL, 3
    )
    monkeypatch.setattr(mx.gme_qp.EdgeQP, "solve", lambda *_: raw)
    solution = mx.GmeProblem(torus, symmetric=symmetric).solve(np.eye(9))
    assert 1e-9 < solution.residual < 1e-8
    assert_solved(solution, torus)
    assert solution.W.is_symmetric == symmetric


# --- only rows sum to 1: sender weights ---
def test_all_may_go_to_one_node_unless_every_node_must_hear_something():
    """On a star with data that cancel nowhere else, the free optimum is W = 𝟏e₀ᵀ: nothing is left to divide by."""
    gram = np.eye(5) - 1 / 5
    np.testing.assert_allclose(solved(gram, g.star(5), **SENDER), np.eye(5)[np.zeros(5, int)], atol=1e-5)
    assert solved(gram, g.star(5), least_heard=0.5, **SENDER).sum(axis=0).min() == pytest.approx(0.5, abs=1e-7)
    assert solved(gram, g.star(5), regularization=0.05, **SENDER).sum(axis=0).min() > 0.05


def test_without_data_what_is_sent_is_spread_evenly():
    """Γ = 0: the smallest ‖W‖_F of given row sums is that of equal rows, 1 / (1 + out-degree)."""
    one_way = Graph(5, [(0, 1), (0, 2), (0, 3), (1, 0), (3, 4)], directed=True)
    expected = mx.uniform_sender(one_way).to_dense()
    np.testing.assert_allclose(solved(np.zeros((5, 5)), one_way, **SENDER), expected, atol=1e-9)


def test_nan_is_blamed_on_its_node_or_on_none():
    G = normal_rows(5, 4)
    G[3, 1] = np.nan
    refused(MixingError, r"Γ\[3, 0\] = nan; .*: look for NaN in node 3's update", mx.minimize_gme, G @ G.T, g.ring(5))
    centered = G - G.mean(axis=0)
    rule = r"Γ\[0, 0\] = nan; .*: no entry is, so look for NaN in every node's update; gram_matrix\(G\) names the node"
    refused(MixingError, rule, mx.minimize_gme, centered @ centered.T, g.ring(5))
