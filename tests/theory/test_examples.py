"""Examples 1, 2 and 3: placements and products of weights that leave no heterogeneity, or no more than one factor."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mixwise.mixing as mx
from mixwise.algorithms import DSGD
from mixwise.graphs import Graph, complete, ring
from mixwise.network import SimulatedNetwork
from mixwise.plan import Plan
from mixwise.policies import Fixed, HeterogeneityAware, Product
from mixwise.sketch import ExactSketch
from mixwise.tasks import QuadraticTask, random_quadratics
from planning import Planner, mixed
from strategies import connected_graphs
from theory.instances import ROUNDING, mixing_matrices, optimized_weights, permutation_mixture, seeds

# ζ′² / ζ² where the theory says 0: squares of rounding errors of relative size 1e-15, with room for sums.
ZERO = 1e-26


def repeated(kinds: np.ndarray, seed: int, dim: int = 3) -> QuadraticTask:
    """Node i holds the random quadratic number kinds[i]."""
    base = random_quadratics(int(kinds.max()) + 1, dim, noise=0.0, seed=seed)
    return QuadraticTask(base.A[kinds], base.b[kinds], seed=seed)


def anywhere(task: QuadraticTask, seed: int) -> torch.Tensor:
    return 5 * torch.randn(task.layout.dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- Example 1 ---
@pytest.mark.parametrize("k", [1, 2, 3, 7])
@pytest.mark.parametrize("seed", range(5))
def test_example_1_ring_with_period_three_data_has_no_relative_heterogeneity(k, seed):
    """D_i = D_{i+3} and weights 1/3 on a ring of 3k nodes: ζ′ = 0 at every x, while ζ ≥ the printed bound > 0."""
    task = repeated(np.arange(3 * k) % 3, seed)
    W = mx.uniform(ring(3 * k))
    for x in (anywhere(task, seed), task.optimum):
        G = task.full_gradients(x)
        assert mx.relative_heterogeneity(G, W) <= ZERO * mx.heterogeneity(G)
    # At x* the mean gradient is 0, so ζ² = (1/3)(‖∇f_1‖² + ‖∇f_2‖² + ‖∇f_3‖²).
    G = task.full_gradients(task.optimum)
    lower_bound = float(G[:3].square().sum()) / 3
    assert lower_bound > 0.1
    assert mx.heterogeneity(G) == pytest.approx(lower_bound, rel=1e-9)


@pytest.mark.parametrize("k", [2, 3, 7])
def test_example_1_needs_the_arrangement(k):
    """The same data with two unlike nodes exchanged: ζ is the same, ζ′ is not 0."""
    kinds = np.arange(3 * k) % 3
    exchanged = kinds.copy()
    exchanged[[0, 1]] = kinds[[1, 0]]
    W, task, other = mx.uniform(ring(3 * k)), repeated(kinds, seed=1), repeated(exchanged, seed=1)
    G, H = task.full_gradients(task.optimum), other.full_gradients(other.optimum)
    assert mx.heterogeneity(H) == pytest.approx(mx.heterogeneity(G), rel=1e-9)
    assert mx.relative_heterogeneity(H, W) > 0.01 * mx.heterogeneity(H)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_example_1_weights_are_found_by_gme_opt(k):
    """The optimum over all weights on the ring is 0 as well; its tie-break costs at most 1e-8 of the mean diagonal."""
    task = repeated(np.arange(3 * k) % 3, seed=2)
    G = task.full_gradients(task.optimum)
    solution = mx.minimize_gme(mx.gram_matrix(G), ring(3 * k))
    assert solution.objective <= 1e-7 * np.trace(mx.gram_matrix(G))


# --- Example 2 ---
@given(copies=st.lists(st.integers(1, 3), min_size=1, max_size=3), seed=seeds)
def test_example_2_perfect_cliques_have_no_relative_heterogeneity(copies, seed):
    """Corrected: (1/|C|) Σ_{j∈C} ∇f_j = ∇f for every clique C, of any size; printed without the factor 1/|C|.

    As printed, summing over the k cliques gives n ∇f = k ∇f, so it could hold only with ∇f = 0 or cliques of one node.
    """
    kinds = np.concatenate([np.tile(np.arange(3), m) for m in copies])
    places = np.random.default_rng(seed).permutation(len(kinds))  # the members of a clique live anywhere
    sizes = [3 * m for m in copies]
    cliques = np.split(places, np.cumsum(sizes)[:-1])
    kind_at = np.empty(len(kinds), dtype=int)
    kind_at[places] = kinds
    task = repeated(kind_at, seed=seed % 1000)
    W = mx.clique_averaging([clique.tolist() for clique in cliques], complete(len(kinds)))
    G = task.full_gradients(anywhere(task, seed))
    for clique in cliques:  # the condition of the example, and why the printed one is another
        torch.testing.assert_close(G[clique].mean(0), G.mean(0), rtol=1e-9, atol=1e-9)
        assert not torch.allclose(G[clique].sum(0), G.mean(0), rtol=0.1)
    assert mx.relative_heterogeneity(G, W) <= ZERO * mx.heterogeneity(G)
    assert mx.heterogeneity(G) > 0.1


def test_example_2_needs_the_cliques_to_be_unbiased():
    """With cliques of like nodes, the same weights leave everything: ζ′ = ζ."""
    task = repeated(np.arange(9) // 3, seed=0)
    G = task.full_gradients(task.optimum)
    W = mx.clique_averaging([range(3), range(3, 6), range(6, 9)])
    assert mx.relative_heterogeneity(G, W) == pytest.approx(mx.heterogeneity(G), rel=1e-9)


# --- Example 3 ---
def planned_product(first: mx.MixingMatrix, second: mx.MixingMatrix, G: torch.Tensor) -> Plan:
    """What the policy `Product` answers when it observes G; `first` is applied first."""
    network = SimulatedNetwork(complete(first.n))
    return Planner(Product([first, second]), network).plan(0, G)


@given(W_zeta=mixing_matrices(3, 7), seed=seeds)
def test_example_3_product_has_the_consensus_factor_of_one_and_the_relative_heterogeneity_of_the_other(W_zeta, seed):
    """p(W_ζ′W_p) ≥ p(W_p) and ζ′(W_ζ′W_p) ≤ ζ′(W_ζ′).

    The proof gives more: 1 − p ≤ (1 − p(W_p))(1 − p(W_ζ′)) and ζ′² ≤ (1 − p(W_p)) ζ′²(W_ζ′).
    """
    W_p = permutation_mixture(W_zeta.n, seed)
    G = torch.randn(W_zeta.n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    plan = planned_product(W_zeta, W_p, G)
    assert plan.params == (W_zeta, W_p)  # two communication rounds
    W = plan.params_product
    p, p_p, p_zeta = (mx.consensus_factor(w) for w in (W, W_p, W_zeta))
    before, after = mx.relative_heterogeneity(G, W_zeta), mx.relative_heterogeneity(G, W)
    assert p >= p_p - ROUNDING
    assert after <= before + ROUNDING * mx.heterogeneity(G)
    assert 1 - p <= (1 - p_p) * (1 - p_zeta) + ROUNDING
    assert after <= (1 - p_p) * before + ROUNDING * mx.heterogeneity(G)


@given(graph=connected_graphs(3, 7), seed=seeds)
def test_example_3_one_step_with_the_product_policy_is_one_step_with_the_product_matrix(graph, seed):
    """D-SGD with the plan of two rounds ends at (W_ζ′W_p)ᵀ X′, W_ζ′ first."""
    W_zeta, W_p = optimized_weights(graph, seed), mx.metropolis_hastings(graph)
    X = torch.randn(graph.n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    plan = planned_product(W_zeta, W_p, X)
    X_plus = mixed(DSGD(), X, X, plan, SimulatedNetwork(graph))
    expected = (W_zeta.to_dense() @ W_p.to_dense()).T @ X.numpy()
    np.testing.assert_allclose(X_plus.numpy(), expected, rtol=0, atol=1e-12)  # rounding of two small products


def test_example_3_needs_the_gradients_weights_first():
    """In the other order the averaging inside cliques meets gradients that are no longer where it expects them."""
    task = repeated(np.arange(6) % 3, seed=0)
    G = task.full_gradients(task.optimum)
    cliques, around = (
        mx.clique_averaging([(0, 1, 2), (3, 4, 5)], complete(6)),
        mx.metropolis_hastings(Graph(6, [(0, 3), (1, 2), (2, 4), (4, 5)])),
    )
    right, wrong = planned_product(cliques, around, G), planned_product(around, cliques, G)
    assert mx.relative_heterogeneity(G, right.params_product) <= ZERO * mx.heterogeneity(G)
    assert mx.relative_heterogeneity(G, wrong.params_product) > 1e-3 * mx.heterogeneity(G)


@given(graph=connected_graphs(3, 7), seed=seeds)
def test_example_3_with_weights_that_follow_the_data(graph, seed):
    """`Product([HeterogeneityAware(), Fixed(W_p)])` is as good as each of its factors at what that one is for."""
    W_p = mx.metropolis_hastings(graph)
    G = torch.randn(graph.n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    network, aware = SimulatedNetwork(graph), HeterogeneityAware(sketch=ExactSketch())
    alone = Planner(aware, network).plan(0, G).params_product
    both = Planner(Product([aware, Fixed(W_p)]), network).plan(0, G).params_product
    assert mx.consensus_factor(both) >= mx.consensus_factor(W_p) - ROUNDING
    assert mx.relative_heterogeneity(G, both) <= mx.relative_heterogeneity(G, alone) + ROUNDING * mx.heterogeneity(G)
