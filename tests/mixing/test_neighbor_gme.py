"""GME-opt by messages between neighbors: always feasible, as good as it says, and no message goes farther.

The reference is the other solver (test_gme.py checks it by a certificate of its own). The distance of an objective from
the optimum F* is measured relative to F*; where F* is less than 1e-3 of the error of Metropolis-Hastings weights,
relative to that; and nothing below 1e-8 Tr Γ counts, which is what the tie-break may cost.

    F(W) = Tr(WᵀΓW) + λ s ‖W − J‖²_F, Γ scaled to s = 1
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mixwise.graphs as g
from builders import assert_feasible, cases, hard_gram, peak_memory, refused, scaled, simulated
from builders import gme_objective as f
from mixwise.algorithms import D2
from mixwise.errors import ConfigError, GraphError, MixingError
from mixwise.mixing import (
    GmeProblem,
    consensus_factor,
    gram_matrix,
    metropolis_hastings,
    minimize_gme,
    neighbor_gme,
    uniform,
)
from mixwise.mixing.neighbor_gme import Jumps, NeighborGme
from mixwise.mixing.neighborhoods import Neighborhoods, exchange_here
from mixwise.network import SimulatedNetwork
from mixwise.policies import HeterogeneityAware
from mixwise.sketch import CountSketch, ExactSketch
from planning import Planner
from strategies import connected_graphs, gram_matrices

GRAPHS = [g.Graph(15, [(i, (i - 1) // 2) for i in range(1, 15)]), g.chain(9), g.ring(16), g.ring(33), g.torus(4, 4)]
GRAPHS += [g.random_connected(16), g.erdos_renyi(20, 0.25, seed=1), g.star(12), g.social_network(), g.complete(8)]
LAMBDAS = [0.0, 1e-3, 0.05, 1.0, 1e6]


def gram(kind: str, n: int) -> np.ndarray:
    rng = np.random.default_rng(n)
    if kind == "rows over 2 orders":
        return gram_matrix(rng.standard_normal((n, 40)) * 10 ** rng.uniform(-1, 1, (n, 1)))
    if kind == "skewed labels, sketched":
        return gram_matrix(rng.dirichlet(np.full(10, 0.1), n) @ rng.standard_normal((10, 100)))
    return hard_gram(kind, n)


GRAMS = ["rank 3", "near-duplicate rows", "duplicate rows", "rows over 2 orders", "label shares", "full rank"]
GRAMS += ["skewed labels, sketched", "rows over 12 orders"]


def total(Gamma: np.ndarray, W: np.ndarray, penalty: float) -> float:
    return f(Gamma, W, penalty) - penalty


def distance(Gamma, W, graph, penalty, symmetric, tolerance) -> float:
    """How far F(W) is from the optimum, as the file's head says."""
    Gamma = scaled(Gamma) if np.any(Gamma) else np.asarray(Gamma)
    best = minimize_gme(Gamma, graph, regularization=penalty, symmetric=symmetric).W.to_dense()
    optimum = total(Gamma, best, penalty)
    usual = total(Gamma, metropolis_hastings(graph).to_dense(), penalty)
    reference = max(optimum, 1e-3 * usual, 1e-8 * (1 + penalty) * graph.n / tolerance)
    return (total(Gamma, W, penalty) - optimum) / reference


def check_feasible(solution, graph, symmetric=False) -> np.ndarray:
    assert solution.W.is_symmetric or not symmetric
    return assert_feasible(solution, graph)


# --- the optimum ---
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("graph", GRAPHS, ids=str)
def test_within_a_thousandth_of_the_optimum(graph, symmetric):
    for kind in GRAMS:
        for penalty in (0.0, 0.05):
            Gamma = gram(kind, graph.n)
            found = minimize_gme(Gamma, graph, solver="local", regularization=penalty, symmetric=symmetric)
            W = check_feasible(found, graph, symmetric)
            assert found.status == "solved", (kind, penalty)
            # 1e-6: what the other solver's tie-break and rounding may cost.
            assert distance(Gamma, W, graph, penalty, symmetric, 1e-3) <= 1e-3 + 1e-6, (kind, penalty)
            assert found.objective == pytest.approx(f(Gamma, W), rel=1e-6, abs=1e-9 * np.trace(Gamma))


def few_directions(rank: int, n: int, seed: int, *, unequal: bool) -> np.ndarray:
    """Γ of rank 1 to 3: many W are optimal or nearly so, and the optimum is often a small part of what others leave."""
    rng = np.random.default_rng(seed)
    G = rng.standard_normal((n, rank)) * (10 ** rng.uniform(-1, 1, (n, 1)) if unequal else 1.0)
    return gram_matrix(G - G.mean(axis=0))


def random_graphs(seed: int) -> list[g.Graph]:
    rng = np.random.default_rng(seed)
    tree = [(int(rng.integers(i)), i) for i in range(1, 20)]
    more = [tuple(sorted(rng.choice(20, 2, replace=False).tolist())) for _ in range(6)]
    drawn = [g.erdos_renyi(16, 0.3, seed), g.erdos_renyi(40, 0.12, seed), g.random_connected(16, seed=seed)]
    drawn += [g.random_regular(30, 3, seed), g.torus(5, 5), g.Graph(20, tree), g.Graph(20, sorted({*tree, *more}))]
    return [graph for graph in drawn if len(graph.components) == 1]


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 6))])
def test_gradients_with_few_directions_on_random_graphs(seed, symmetric, unequal):
    """The hardest ones; without jumps, or with jumps in circles, some did not get there in 5,000 iterations."""
    for graph in random_graphs(seed):
        for rank in (1, 2, 3):
            Gamma = few_directions(rank, graph.n, seed, unequal=unequal)
            for tolerance, limits in ((1e-3, {}), (1e-4, {"tolerance": 1e-4, "max_iterations": 20_000})):
                found = minimize_gme(Gamma, graph, solver="local", symmetric=symmetric, **limits)
                assert found.status == "solved", (graph, rank, tolerance)
                W = check_feasible(found, graph, symmetric)
                assert distance(Gamma, W, graph, 0.0, symmetric, tolerance) <= tolerance + 1e-6, (graph, rank)


PROBLEMS = {"penalty": st.sampled_from(LAMBDAS), "symmetric": st.booleans(), "cap": st.sampled_from([1, 7, 30, 300])}


@settings(max_examples=80)
@given(data=st.data(), graph=connected_graphs(1, 12), **PROBLEMS)
def test_the_residual_is_an_upper_bound_whenever_it_stops(data, graph, penalty, symmetric, cap):
    """Feasible and not worse than Metropolis-Hastings at any time; as near to the optimum as the residual says."""
    Gamma = data.draw(gram_matrices(graph.n, centered=data.draw(st.booleans()) and graph.n > 1))
    found = minimize_gme(Gamma, graph, solver="local", regularization=penalty, symmetric=symmetric, max_iterations=cap)
    W = check_feasible(found, graph, symmetric)
    assert found.status == ("solved" if found.residual <= 1e-3 else "stopped at the cap")
    assert found.solved == (found.residual <= 1e-3)
    assert found.iterations <= cap
    used = penalty if np.any(Gamma) else 1.0
    assert distance(Gamma, W, graph, used, symmetric, 1e-3) <= found.residual + 1e-5
    assert found.objective == pytest.approx(f(Gamma, W), rel=1e-6, abs=1e-9 * np.trace(Gamma))
    usual, unit = metropolis_hastings(graph).to_dense(), scaled(Gamma) if np.any(Gamma) else Gamma
    assert total(unit, W, used) <= total(unit, usual, used) * (1 + 1e-9) + 1e-7 * graph.n * (1 + used)


def test_one_node_two_nodes_and_no_heterogeneity():
    assert minimize_gme([[3.0]], g.Graph(1, []), solver="local").W.to_dense() == [[1.0]]
    pair = minimize_gme([[1.0, -1.0], [-1.0, 1.0]], g.chain(2), solver="local")
    np.testing.assert_allclose(pair.W.to_dense(), 0.5, atol=1e-6)
    for graph in (g.ring(8), g.torus(3, 3), g.complete(7)):  # all alike: the smallest W is the same weight everywhere
        even = minimize_gme(np.zeros((graph.n, graph.n)), graph, solver="local")
        assert (even.status, even.objective) == ("solved", 0.0)
        np.testing.assert_allclose(even.W.to_dense(), uniform(graph).to_dense(), atol=1e-9)


def test_a_start_at_the_last_solution_saves_iterations():
    graph, rng = g.ring(16), np.random.default_rng(0)
    G = rng.standard_normal((16, 3))
    problem = NeighborGme(graph, range(16), exchange_here)
    _, end = problem.solve(problem.look(G), tolerance=1e-4)
    changed = problem.look(G + 1e-3 * rng.standard_normal(G.shape))
    cold, _ = problem.solve(changed, tolerance=1e-4)
    warm, _ = problem.solve(changed, tolerance=1e-4, start=end)
    assert warm.status == cold.status == "solved"
    assert warm.iterations < cold.iterations


# --- rejected ---
@cases(
    "graph, options, message",
    (g.Graph(3, [(0, 1), (1, 2), (2, 0)], directed=True), {}, 'solver="local".* needs an undirected graph'),
    (g.Graph(4, [(0, 1), (2, 3)]), {}, '2 components, but solver="local".* needs a connected graph; add edges'),
    (g.ring(4), {"kind": "sender"}, "doubly stochastic weights only; for kind = 'sender' use"),
    (g.ring(4), {"tolerance": 0.0}, r"tolerance = 0.0; a distance relative to the optimum lies in \(0, 1\)"),
    (g.ring(4), {"tolerance": float("nan")}, "tolerance = nan"),
    (g.ring(4), {"max_iterations": 0}, "max_iterations = 0; a solve takes at least 1"),
)
def test_problems_that_it_cannot_solve_are_rejected(graph, options, message):
    refused((MixingError, GraphError), message, GmeProblem, graph, solver="local", **options)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e200])
def test_a_sketch_that_is_not_finite_is_named_on_all_nodes(value):
    S = np.ones((6, 3))
    S[4, 1] = S[5, 0] = value
    with pytest.raises(MixingError, match=r"the sketch of node 4 is not finite, or above 1e\+140; look for NaN"):
        NeighborGme(g.ring(6), range(6), exchange_here).look(S)


# --- jumps ---
def linear(graph: g.Graph, size: int, seed: int):
    """A contraction v ← A v + c on the entries of a graph that moves in `size` directions only, and where it ends."""
    entries, rng = len(graph.pattern.rows), np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((entries, size)))[0]
    end, speeds = rng.standard_normal(entries), rng.uniform(-0.5, 0.95, size)
    return lambda v: end + Q @ (speeds * (Q.T @ (v - end))), end, Q


def jumps_on(graph: g.Graph) -> Jumps:
    return Jumps(Neighborhoods(graph, range(graph.n), exchange_here))


@pytest.mark.parametrize("graph", [g.ring(6), g.star(5), g.random_connected(12)], ids=str)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_jump_ends_at_the_fixed_point_of_a_linear_iteration(graph, size):
    """With more steps than directions some combination of them is 0, and the same one of the points is the end."""
    step, end, Q = linear(graph, size, seed=size)
    jumps, v = jumps_on(graph), end + Q @ np.ones(size)
    jumps.begin_at(v)
    for _ in range(12):
        v = step(v)
        jumps.add(v)
    ahead = jumps.ahead()
    assert np.linalg.norm(ahead - end) < 1e-2 * np.linalg.norm(v - end)


def test_a_jump_is_made_only_where_steps_have_become_shorter():
    graph = g.ring(6)
    jumps, v = jumps_on(graph), np.zeros(len(graph.pattern.rows))
    directions = np.eye(len(v))

    def after_steps(length):
        jumps.begin_at(v)
        for k in range(12):
            jumps.add(v + length * directions[k % 2])
        return jumps.ahead()

    assert after_steps(1.0) is not None
    assert after_steps(1.0) is None
    assert after_steps(0.95) is None
    assert after_steps(0.8) is not None
    assert after_steps(0.8) is None
    assert after_steps(0.0) is None  # nothing moves any more


# --- who hears what ---
class Counted:
    """An exchange that counts what each node sends, and to whom."""

    def __init__(self, graph: g.Graph) -> None:
        self.allowed = set(zip(*(ends.tolist() for ends in graph.arcs[:2]), strict=True))
        self.bytes, self.longest = np.zeros(graph.n), 0

    def __call__(self, messages, graph):
        arcs = list(zip(*(ends.tolist() for ends in graph.arcs[:2]), strict=True))
        assert set(arcs) <= self.allowed
        assert len(messages) == len(arcs)
        self.longest = max(self.longest, messages.shape[1])
        np.add.at(self.bytes, graph.arcs.senders, messages.shape[1] * messages.itemsize)
        return exchange_here(messages, graph)


@settings(max_examples=15)
@given(graph=connected_graphs(2, 12), symmetric=st.booleans())
def test_messages_travel_along_edges_only(graph, symmetric):
    counted = Counted(graph)
    problem = NeighborGme(graph, range(graph.n), counted)
    problem.solve(problem.look(np.random.default_rng(0).standard_normal((graph.n, 5))), symmetric=symmetric)
    assert (counted.bytes > 0).all()
    assert counted.longest <= 55  # 5 numbers of a sketch and 2 about all of them, 8 of a test, 55 products of a jump


@pytest.mark.parametrize("graph", [g.torus(8, 16), g.star(40), g.social_network()], ids=str)
def test_gram_matrices_of_neighborhoods_are_parts_of_the_whole(graph, monkeypatch):
    monkeypatch.setattr(neighbor_gme, "_BLOCK", 1000)  # several blocks of nodes, also on small graphs
    S = np.random.default_rng(0).standard_normal((graph.n, 30)).astype(np.float32)
    problem = NeighborGme(graph, range(graph.n), exchange_here)
    for found, expected in zip(problem.look(S), problem.blocks(gram_matrix(S)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_iterations_and_memory_per_node_do_not_grow_with_n():
    iterations, peaks = [], []
    for graph in (g.torus(20, 32), g.torus(64, 100)):
        S = np.random.default_rng(0).standard_normal((graph.n, 100)).astype(np.float32)
        problem = NeighborGme(graph, range(graph.n), exchange_here)
        blocks, peak = peak_memory(lambda problem=problem, S=S: problem.look(S))
        peaks.append(peak / graph.n)
        iterations.append(problem.solve(blocks, tolerance=0.1)[0].iterations)
    assert iterations[1] <= iterations[0]
    received = 4 * 100 * 4  # bytes of the sketches of four neighbors
    assert max(peaks) < 5 * received + 2**21 / graph.n  # sent, arrived, in place, totals; and what is multiplied


def test_bytes_per_node_do_not_depend_on_n():
    """A ring, 40 iterations, k = 20: the same bytes at the busiest node for 8, 64 and 512 nodes."""
    sent = []
    for n in (8, 64, 512):
        counted = Counted(g.ring(n))
        problem = NeighborGme(g.ring(n), range(n), counted)
        S = (np.random.default_rng(0).standard_normal((n, 20)) * (np.arange(20) < 2)).astype(np.float32)
        found, _ = problem.solve(problem.look(S), tolerance=1e-15, max_iterations=40)
        assert found.iterations == 40
        sent.append(counted.bytes.max())
    assert sent[0] == sent[1] == sent[2]
    # To 2 neighbors: a float32 sketch, 2 numbers per iteration, per test and per jump. Along the tree, up and down: 22
    # numbers of the look, 3 of the scale, 8 per test, 55 per jump; and up, once per test, the imbalance.
    assert sent[0] == 2 * 20 * 4 + 8 * (2 * (2 * 40 + 2 * 4 + 2) + 2 * (22 + 3 + 8 * 4 + 55) + 4)


# --- the policy ---
def objective_on(Gamma, W, penalty):
    return total(scaled(Gamma), W.to_dense(), penalty)


OPTIONS = [{}, {"sketch": CountSketch(7)}, {"objective": "parameters"}, {"objective": "both", "balance": 0.3}]
OPTIONS += [{"smoothing": 0.6, "regularization": 0.05}, {"symmetric": True, "objective": "both"}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_as_good_as_gathered_sketches(options):
    """At every look, on the Γ that the gathering policy sees: within the tolerance of its weights."""
    graph, penalty = g.torus(4, 4), options.get("regularization", 0.0)
    options = {"sketch": ExactSketch(), **options}
    policies = (HeterogeneityAware(2, solver=solver, **options) for solver in ("local", "auto"))
    local, gathered = (Planner(policy, SimulatedNetwork(graph)) for policy in policies)
    rng = np.random.default_rng(0)
    G, X = rng.standard_normal((16, 12)), torch.from_numpy(5 * rng.standard_normal((16, 12)))
    for t in range(8):
        G = 0.9 * G + 0.4 * rng.standard_normal(G.shape)
        U = torch.from_numpy(G) * (t > 0)  # a warm-up from 0: look at G, and again
        assert local.looks(t) == gathered.looks(t)
        plan, other = (policy.plan(t, U, torch.from_numpy(G), X) for policy in (local, gathered))
        assert local.state.shared["unsettled"] == gathered.state.shared["unsettled"]
        assert len(plan.solves) == len(other.solves)
        if not plan.solves:
            continue
        assert plan.solves[0].status == "solved"
        found, best = (objective_on(gathered.gram, W, penalty) for W in (plan.params[0], other.params[0]))
        assert best * (1 - 1e-6) <= found <= best * (1 + 1e-3) + 1e-6
        assert plan.solves[0].objective == pytest.approx(f(gathered.gram, plan.params[0].to_dense()), rel=1e-9)
    assert local.network.traffic.parameters == 0
    assert local.network.traffic.sketches > 0
    assert local.state.shared["gram"] is None


@cases(
    "options, message",
    ({"growth": 1.5}, 'growth needs all of Γ, which no node knows with solver="local"; drop one of the two'),
    ({"drop_below": 0.1}, "drop_below needs all of Γ"),
    ({"graphs": HeterogeneityAware()}, "graphs needs all of Γ"),
    ({"stochastic": "sender"}, "doubly stochastic weights only"),
)
def test_options_that_need_all_of_gamma_are_rejected(options, message):
    refused((MixingError, ConfigError), message, HeterogeneityAware, **{"solver": "local", **options})


@pytest.mark.parametrize("limits", [{}, {"tolerance": 1e-6}, {"max_iterations": 3}])
def test_the_limits_of_the_solver_are_options_with_its_defaults(limits):
    planner = Planner(HeterogeneityAware(solver="local", sketch=ExactSketch(), **limits), SimulatedNetwork(g.ring(6)))
    problem, U = NeighborGme(g.ring(6), range(6), exchange_here), np.random.default_rng(0).standard_normal((6, 4))
    expected, _ = problem.solve(problem.look(U), **limits)
    assert planner.plan(0, torch.from_numpy(U)).solves[0].iterations == expected.iterations


def test_an_algorithm_that_needs_them_gets_lazy_and_symmetric_weights():
    """D² on neighbors' weights: symmetric, and half of them loops."""
    policy = HeterogeneityAware(solver="local", sketch=ExactSketch())
    W = simulated(policy, D2(), g.ring(8), lr=0.001).step().plan.params[0]
    assert W.is_symmetric
    assert W.to_dense().diagonal().min() >= 0.5
    assert consensus_factor(W) > 0
