"""D² is stable with W if and only if its recursion contracts; other matrices are rejected before they mix."""

import itertools

import numpy as np
import pytest

import mixwise.mixing as mx
from builders import cases, refused
from mixwise.algorithms.exact import check_d2_stability
from mixwise.errors import MixingError
from mixwise.graphs import Graph, chain, complete, ring, social_network, torus


def growth(W):
    """By what factor X⁺ = Wᵀ(2X − X_prev) scales what is not the mean, per step, in the long run."""
    dense = W.to_dense().T
    n = len(dense)
    away = np.eye(n) - 1 / n
    state = [away @ np.random.default_rng(0).standard_normal((n, 3)) for _ in range(2)]
    logs = []
    for _ in range(4000):
        state = [away @ dense @ (2 * state[0] - state[1]), state[0]]
        size = np.sqrt(sum(np.square(part).sum() for part in state))
        if size == 0:
            return 0.0
        logs.append(np.log(size))
        state = [part / size for part in state]
    return float(np.exp(np.mean(logs[len(logs) // 3 :])))


def accepted(W):
    try:
        check_d2_stability(W)
    except MixingError:
        return False
    return True


def pair(weight):
    return mx.MixingMatrix.from_dense(np.array([[1 - weight, weight], [weight, 1 - weight]]))


def circulant(n, *shares):
    """Each node keeps the first share and sends the k-th to the k-th node after it; eigenvalues are complex."""
    dense = sum(share * np.roll(np.eye(n), k, axis=1) for k, share in enumerate(shares))
    return mx.MixingMatrix.from_dense(dense)


@pytest.mark.parametrize("eigenvalue", [-1, -0.8, -0.4, -0.335, -0.332, -0.2, -1e-3, 0, 0.1, 0.5, 0.9, 0.99])
def test_a_real_eigenvalue_is_accepted_if_and_only_if_the_recursion_contracts(eigenvalue):
    W = pair((1 - eigenvalue) / 2)
    assert mx.eigenvalues(W).min() == pytest.approx(min(eigenvalue, 1), abs=1e-12)
    assert accepted(W) == (eigenvalue > -1 / 3)
    rate = growth(W)
    assert accepted(W) == (rate < 1)
    roots = np.roots([1, -2 * eigenvalue, eigenvalue])
    assert rate == pytest.approx(np.abs(roots).max(), rel=1e-3, abs=1e-6)


KNOWN = {(4, (0.7, 0.2, 0.0, 0.1)): True, (8, (0.5, 0.5)): False}


@cases(
    "n, shares",
    *itertools.product([3, 5, 8], [(0.9, 0.1), (0.5, 0.5), (0.3, 0.7)]),
    (6, (0.4, 0.3, 0.3)),
    (3, (0.4, 0.35, 0.25)),
    (4, (0.4, 0.3, 0.2, 0.1)),
    (4, (0.7, 0.2, 0.0, 0.1)),
    (5, (0.25, 0.25, 0.2, 0.15, 0.15)),
    (6, (0.6, 0.1, 0.1, 0.1, 0.1)),
)
def test_complex_eigenvalues_are_accepted_if_and_only_if_the_recursion_contracts(n, shares):
    W = circulant(n, *shares)
    rate = growth(W)
    assert abs(rate - 1) > 1e-3  # no case in doubt
    assert accepted(W) == (rate < 1)
    if (n, shares) in KNOWN:  # both verdicts occur: lazy is not enough without symmetry
        assert accepted(W) == KNOWN[n, shares]


@pytest.mark.parametrize(("graph", "smallest"), [(ring(16), -1 / 3), (torus(4, 4), -0.6), (social_network(), -0.43)])
def test_metropolis_hastings_is_refused_on_the_graphs_of_the_paper(graph, smallest):
    W = mx.metropolis_hastings(graph)
    assert mx.eigenvalues(W).min() == pytest.approx(smallest, abs=5e-3)
    refused(MixingError, r"eigenvalue -0\.\d+.*unit disc.*lazy\(symmetrized\(W\)\)", check_d2_stability, W)
    check_d2_stability(mx.lazy(mx.symmetrized(W)))


@pytest.mark.parametrize("graph", [complete(5), chain(2), ring(3), Graph(3, [])])
def test_full_averaging_and_no_mixing_at_all_are_stable(graph):
    W = mx.uniform(graph)
    check_d2_stability(W)
    if graph.is_connected:
        assert growth(W) < 1e-6
