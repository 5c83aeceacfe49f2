"""A²CiD² against its definition: pair by pair, with the differential equation solved by a matrix exponential."""

import math
from unittest.mock import DEFAULT, patch

import numpy as np
import pytest
import torch
from scipy.linalg import expm

from builders import refused
from mixwise import graphs
from mixwise.algorithms import ACiD
from mixwise.algorithms.acid import constants
from mixwise.errors import MixwiseError
from mixwise.network import SimulatedNetwork
from mixwise.policies import Pairs
from mixwise.protocols import Context, Round


def matchings(graph, rounds, mixings):
    schedule = Pairs(rounds).init(Context(graph)).scratch["schedule"]
    return [schedule.rounds_of(t) for t in range(mixings)]


@pytest.mark.parametrize("rounds", [1, 3])
def test_it_is_the_authors_method_pair_by_pair(rounds):
    graph, acid, generator = graphs.ring(8), ACiD(), torch.Generator().manual_seed(0)
    network, context = SimulatedNetwork(graph), Context(graph)
    X = torch.randn(8, 3, dtype=torch.float64, generator=generator)
    state, policy = acid.init(X, context), Pairs(rounds)
    policy_state = policy.init(context)
    eta, alpha = constants(graph)
    flow = expm(eta * np.array([[-1.0, 1.0], [1.0, -1.0]]))
    x, tilde, mixed = X.numpy().copy(), X.numpy().copy(), []
    for t in range(6):
        U = torch.randn(8, 3, dtype=torch.float64, generator=generator)
        round = Round(t, X - U, U, X, algorithm=acid)
        plan, announced = policy.plan(round, policy_state, network), acid.rows_to_mix(round, state)
        with patch.object(network, "mix", wraps=network.mix) as mix:
            mix.side_effect = lambda rows, W: mixed.append(rows.clone()) or DEFAULT
            acid.mix(round, plan, state, network)
        torch.testing.assert_close(mixed[-rounds], announced, rtol=0, atol=1e-12)
        X = round.X_prime
        x, tilde = x - U.numpy(), tilde - U.numpy()
        for W in plan.params:
            x, tilde = flow[0, 0] * x + flow[0, 1] * tilde, flow[1, 0] * x + flow[1, 1] * tilde
            for i, j in np.argwhere(np.triu(W.sparse.toarray(), 1) > 0):
                m = x[i] - x[j]
                x[i], x[j] = x[i] - m / 2, x[j] + m / 2
                tilde[i], tilde[j] = tilde[i] - alpha * m, tilde[j] + alpha * m
        assert np.abs(X.numpy() - x).max() < 1e-12
        assert np.abs(state.rows["tilde"].numpy() - tilde).max() < 1e-12


@pytest.mark.parametrize("n", [6, 16])
def test_constants_of_a_ring_in_closed_form(n):
    """Λ is half of the ring's Laplacian; an edge has the resistance (n − 1)/n of the ring of unit resistors."""
    gap, chi = 1 - math.cos(2 * math.pi / n), (n - 1) / n
    assert constants(graphs.ring(n)) == pytest.approx((0.5 * math.sqrt(gap / chi), 0.5 / math.sqrt(gap * chi)))


@pytest.mark.parametrize("graph", [graphs.Graph(4, [(0, 1), (0, 2), (1, 2), (2, 3)]), graphs.social_network()])
def test_constants_by_the_pseudoinverse(graph):
    """Tr(Λ⁺ L) = Σ (e_i − e_j)ᵀ Λ⁺ (e_i − e_j) over the edges, with L the Laplacian of weights 1."""
    L = np.diag(graph.adjacency.toarray().sum(axis=0)) - graph.adjacency.toarray()
    degrees = np.diag(L)
    Lambda = L / np.maximum.outer(degrees, degrees)
    np.fill_diagonal(Lambda, 0)
    np.fill_diagonal(Lambda, -Lambda.sum(axis=1))
    chi = np.trace(np.linalg.pinv(Lambda) @ L) / (2 * len(graph.edges))
    gap = np.linalg.eigvalsh(Lambda)[1]
    assert constants(graph) == pytest.approx((0.5 * math.sqrt(gap / chi), 0.5 / math.sqrt(gap * chi)))


@pytest.mark.parametrize(("graph", "rounds"), [(graphs.ring(16), 1), (graphs.ring(64), 2)])
def test_disagreement_shrinks_faster_on_rings_in_the_long_run(graph, rounds):
    eta, alpha = constants(graph)
    n, mixings = graph.n, matchings(graph, rounds, 64)[32:]
    flow = np.kron(expm(eta * np.array([[-1.0, 1.0], [1.0, -1.0]])), np.eye(n))
    apart = np.eye(n) - 1 / n
    plain, both = apart, np.kron(np.eye(2), apart)
    for W in (W.incoming.toarray() for rounds_of in mixings for W in rounds_of):
        plain = W @ plain
        moved = np.block([[W, np.zeros((n, n))], [2 * alpha * (W - np.eye(n)), np.eye(n)]])
        both = moved @ flow @ both
    factors = [max(abs(np.linalg.eigvals(M))) ** (1 / len(mixings)) for M in (plain, both)]
    assert factors[1] < factors[0] - 0.02


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (graphs.ring(4098), "eigenvalues of a graph of 4098 nodes, and at most 4096 are allowed; use"),
        (graphs.directed_ring(4), "A²CiD²"),
    ],
)
def test_graphs_that_are_refused(graph, message):
    refused(MixwiseError, message, constants, graph)


def test_alone_it_is_the_optimizer():
    assert constants(graphs.Graph(1, [])) == (0.0, 0.5)
