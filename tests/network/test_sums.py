"""Rows are added up by the same operations in the same order, however many they are and however long."""

import numpy as np
import pytest
import torch

from builders import random_rows
from mixwise.graphs import Graph, complete, random_connected, ring, star
from mixwise.mixing import gram_matrix, metropolis_hastings
from mixwise.network import SimulatedNetwork, sums
from mixwise.network.sums import mix_rows, sum_in_place, sum_terms

pytestmark = pytest.mark.numerics

GRAPHS = [
    ring(5),
    star(7),
    complete(4),
    random_connected(9, 0.4, seed=1),
    Graph(5, [(0, 1), (1, 2), (2, 0), (3, 2), (2, 4)], directed=True),
    Graph(6, [(0, 4), (1, 2)]),
    Graph(1, []),
]


def in_python(X, graph, weights):
    """Σ_i w_ij x_i in Python's own floats: one rounding per product and one per sum, senders ascending."""
    expected = torch.empty_like(X)
    for j in range(graph.n):
        for column in range(X.shape[1]):
            total = None
            for i, receiver, w in zip(graph.pattern.rows, graph.pattern.cols, weights, strict=True):  # sorted by sender
                if receiver == j:
                    product = float(w) * float(X[i, column])
                    total = product if total is None else total + product
            expected[j, column] = total
    return expected


@pytest.mark.parametrize("graph", GRAPHS, ids=str)
@pytest.mark.parametrize("limit", ["_LONG", "_BLOCK", "neither"])
@pytest.mark.parametrize("equal", [None, 1 / 3, 1 / 2])
def test_bits_are_those_of_one_rounding_per_product_and_sum(graph, limit, equal, monkeypatch):
    """Few rows, many rows (which do not fit one block), pairs, and long rows; equal weights, and pairs that average."""
    monkeypatch.setattr(sums, limit, 1, raising=False)
    size = len(graph.pattern.rows)
    weights = np.full(size, equal) if equal else np.random.default_rng(0).standard_normal(size)
    X, out = random_rows(graph.n, 13), torch.empty(graph.n, 13, dtype=torch.float64)
    mix_rows(X, graph, weights, out)
    assert torch.equal(out, in_python(X, graph, weights))
    added = random_rows(graph.n, 13)
    mix_rows(X, graph, weights, added, add=True)
    assert torch.equal(added, X + out)
    mix_rows(X, graph, weights, X[:])  # another tensor of the same memory
    assert torch.equal(X, out)


@pytest.mark.parametrize("limit", ["_LONG", "neither"])
def test_numpy_and_torch_add_up_to_the_same_bits(limit, monkeypatch):
    """NumPy adds up rows in the memory of the CPU, torch those that NumPy cannot reach; neither warns of infinity."""
    monkeypatch.setattr(sums, limit, 1, raising=False)
    graph, X = random_connected(9, 0.4, seed=1), random_rows(9, 300, dtype=torch.float32)
    X[2, 5], X[3, 5], X[4, 6] = torch.inf, -torch.inf, torch.nan
    weights = metropolis_hastings(graph).weights
    mix_rows(X, graph, weights, by_numpy := torch.empty_like(X))
    monkeypatch.setattr(sums, "as_array", lambda X: None)
    mix_rows(X, graph, weights, by_torch := torch.empty_like(X))
    torch.testing.assert_close(by_numpy, by_torch, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("block", [1, 7, 1000, 1 << 17])
def test_bits_do_not_depend_on_the_length_of_rows_or_blocks(dtype, block, monkeypatch):
    """Vector kernels treat the last numbers of a block in another way than the others."""
    graph = random_connected(6, 0.5, seed=2)
    W, X = metropolis_hastings(graph), random_rows(6, 4200, dtype=dtype)
    expected = SimulatedNetwork(graph).mix(X, W)
    monkeypatch.setattr(sums, "_BLOCK", block)
    columns = slice(0, 4200) if block > 100 else slice(3, 60)
    assert torch.equal(SimulatedNetwork(graph).mix(X[:, columns], W), expected[:, columns])
    given = X[:, columns].clone()
    assert SimulatedNetwork(graph).mix(given, W, out=given) is given
    assert torch.equal(given, expected[:, columns])
    monkeypatch.setattr(sums, "_LONG", 1)
    assert torch.equal(SimulatedNetwork(graph).mix(X[:, columns], W), expected[:, columns])


@pytest.mark.parametrize("terms", [((1, 0.3), (0, 0.2), (2, 0.5)), ((0, 0.7), (1, 0.3)), ((2, 1.0),), ()])
def test_in_place_or_apart_the_bits_are_the_same(terms):
    X = random_rows(3, 1001)
    apart, product = torch.empty(2, 1001, dtype=torch.float64).unbind()
    sum_terms(X.unbind(), terms, apart, product)
    total = sum_in_place(X.unbind(), terms)
    assert torch.equal(total, apart)
    if not terms or any(position == 0 for position, _ in terms):
        assert torch.equal(X[0], apart)


def test_a_gram_matrix_has_the_bits_of_pairwise_sums():
    """NumPy and torch, contiguous or not, from any block of memory: the same products, added in the same order."""
    G = np.random.default_rng(0).standard_normal((5, 300))
    C, gram = G - G.mean(0), gram_matrix(G)
    assert (gram == np.array([[(a * b).sum() for b in C] for a in C])).all()
    assert (gram_matrix(np.asfortranarray(G)) == gram).all()
    assert (gram_matrix(torch.from_numpy(G)) == gram).all()
