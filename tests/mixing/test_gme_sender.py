"""GME-opt where only rows sum to 1 (kind="sender"), on directed graphs; judged by CVXPY and by a certificate.

A linear function of W ≥ 0 with row sums 1 is least where every row puts all its weight on its smallest entry, so

    f(W) − min f ≤ ⟨∇f(W), W⟩ − Σ_i min_j ∇f(W)[i, j]      for convex f, j over the receivers of i.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mixwise.graphs as g
from builders import assert_feasible, cvxpy_gme, normal_rows, on_graph, scaled
from builders import gme_objective as f
from mixwise.graphs import Graph
from mixwise.mixing import gram_matrix, minimize_gme
from strategies import gram_matrices, graphs

TIE_BREAK = 1e-8


def feasible(gram, graph: Graph, penalty: float = 0.0, least_heard: float = 0.0, **options) -> np.ndarray:
    solution = minimize_gme(gram, graph, regularization=penalty, kind="sender", least_heard=least_heard, **options)
    assert solution.status == "solved"
    W = assert_feasible(solution, graph, "sender", least_heard)
    assert solution.objective == pytest.approx(f(np.asarray(gram, float), W), rel=1e-6, abs=1e-12 * np.trace(gram))
    return W


@given(data=st.data(), graph=graphs(1, 10), penalty=st.sampled_from([0.0, 0.05, 1.0]))
def test_objective_is_the_one_cvxpy_finds(data, graph, penalty):
    gram = data.draw(gram_matrices(graph.n, min_rank=1, centered=graph.n > 1))
    least_heard = data.draw(st.sampled_from([0.0, 0.2, 0.9]))
    W = feasible(gram, graph, penalty, least_heard)
    # 1e-7 n: what CLARABEL leaves where the optimum is almost 0, and the tie-break of 1e-8 n.
    optimum = cvxpy_gme(scaled(gram), graph, penalty, least_heard=least_heard)[0]
    assert f(scaled(gram), W, penalty) == pytest.approx(optimum, rel=1e-6, abs=1e-7 * graph.n)


@settings(max_examples=150)
@given(data=st.data(), graph=graphs(1, 16), penalty=st.sampled_from([0.0, 0.0, 0.05, 10.0]))
def test_optimal_by_certificate(data, graph, penalty):
    gram = data.draw(gram_matrices(graph.n, centered=data.draw(st.booleans())))
    W, Gamma = feasible(gram, graph, penalty), scaled(gram)
    used = max(penalty, TIE_BREAK) if gram.any() else 1.0
    slope = 2 * (Gamma @ W + used * W)
    # The program that is really solved, to the 1e-12 of the solver; 100 times that for the sums.
    assert (slope * W).sum() - on_graph(slope, graph).min(axis=1).sum() <= 1e-10 * (1 + used) * graph.n


@given(data=st.data(), graph=graphs(2, 10))
def test_between_free_columns_and_doubly_stochastic(data, graph):
    """More room for the columns can only help, and c = 1 leaves none: n columns of at least 1 sum to n."""
    gram = data.draw(gram_matrices(graph.n, min_rank=1))
    Gamma = scaled(gram)
    errors = [f(Gamma, feasible(gram, graph, least_heard=c)) for c in (0.0, 0.3, 0.7, 1.0)]
    assert (np.diff(errors) >= -2e-8 * graph.n).all()
    doubly = f(Gamma, minimize_gme(gram, graph).W.to_dense())
    assert errors[-1] == pytest.approx(doubly, abs=2e-8 * graph.n)


def test_both_solvers_agree():
    graph = Graph(6, [(i, j) for i in range(6) for j in range(6) if (i * j + i) % 3], directed=True)
    gram = gram_matrix(normal_rows(6, 4))
    for penalty, least_heard in [(0.0, 0.0), (0.1, 0.0), (0.0, 0.5)]:
        ours, theirs = (feasible(gram, graph, penalty, least_heard, solver=solver) for solver in ("piqp", "cvxpy"))
        assert f(scaled(gram), ours, penalty) == pytest.approx(f(scaled(gram), theirs, penalty), rel=1e-5, abs=1e-7)


def test_all_may_go_to_one_node_unless_every_node_must_hear_something():
    """On a star with data that cancel nowhere else, the free optimum is W = 𝟏e₀ᵀ: nothing is left to divide by."""
    gram = np.eye(5) - 1 / 5
    np.testing.assert_allclose(feasible(gram, g.star(5)), np.eye(5)[np.zeros(5, int)], atol=1e-5)
    assert feasible(gram, g.star(5), least_heard=0.5).sum(axis=0).min() == pytest.approx(0.5, abs=1e-7)
    assert feasible(gram, g.star(5), penalty=0.05).sum(axis=0).min() > 0.05


def test_a_one_way_chain_can_mix_now():
    """A doubly stochastic W is the identity there; with rows alone, what is sent meets what it complements."""
    one_way = Graph(4, [(0, 1), (1, 2), (2, 3)], directed=True)
    G = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    assert f(G @ G.T, feasible(G @ G.T, one_way)) <= 1e-7
    assert f(G @ G.T, minimize_gme(G @ G.T, one_way).W.to_dense()) == pytest.approx(4)


def test_no_data_spread_what_is_sent_evenly():
    """Γ = 0: the smallest ‖W‖_F of given row sums is that of equal rows, 1 / (1 + out-degree)."""
    one_way = Graph(5, [(0, 1), (0, 2), (0, 3), (1, 0), (3, 4)], directed=True)
    expected = (np.eye(5) + one_way.adjacency.toarray()) / (1 + np.array(one_way.degrees))[:, None]
    np.testing.assert_allclose(feasible(np.zeros((5, 5)), one_way), expected, atol=1e-9)
