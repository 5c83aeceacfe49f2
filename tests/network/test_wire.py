"""Rows in fewer bytes: how close they stay, and what gossip conserves.

Legend: X (n, d) rows; q = Q(X) as they arrive.
"""

import numpy as np
import pytest
import torch

from builders import asymmetric, random_rows, refused
from mixwise.errors import NetworkError
from mixwise.graphs import complete, ring
from mixwise.mixing import metropolis_hastings
from mixwise.network import SimulatedNetwork
from mixwise.network.traffic import SKETCHES
from mixwise.network.wire import Wire, as_wire_dtype

BOTH = pytest.mark.parametrize("wire", [torch.bfloat16, torch.int8])


@BOTH
@pytest.mark.parametrize("d", [65, 256, 257, 1023])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_rounded_to_the_nearest_level(wire, d, dtype):
    """bfloat16 has 8 significant bits; int8 has 127 levels up to the largest number of its block of 256."""
    X = 1e-6 * random_rows(3, d, dtype=dtype)  # nothing depends on the scale
    error = (Wire(wire, d).rounded(X) - X).abs()
    if wire == torch.bfloat16:
        assert (error <= 2.0**-8 * X.abs()).all()
        return
    for block, off in zip(X.split(256, dim=1), error.split(256, dim=1), strict=True):
        assert (off <= block.abs().amax(dim=1, keepdim=True) / 127 / 2 * 1.001).all()


@BOTH
def test_a_row_of_zeros_stays_zero_and_a_wrong_number_stays_wrong(wire):
    """Not finite in, not finite out: a receiver must be able to see it."""
    assert Wire(wire, 300).rounded(torch.zeros(1, 300)).eq(0).all()
    assert Wire(wire, 300).rounded(torch.zeros(0, 300)).shape == (0, 300)  # of a rank without a partner
    for value in (torch.nan, torch.inf):
        assert not Wire(wire, 300).rounded(torch.full((1, 300), value)).isfinite().any()


@BOTH
@pytest.mark.parametrize("kind", ["symmetric", "doubly"])
def test_gossip_with_rounded_rows_conserves_the_mean_and_reaches_consensus_up_to_rounding(wire, kind):
    graph = ring(6)
    W = metropolis_hastings(graph) if kind == "symmetric" else asymmetric(6)
    X = random_rows(6, 500, dtype=torch.float64)
    network, start, mean = SimulatedNetwork(W.graph, wire_dtype=wire), X.std(dim=0).mean(), X.mean(dim=0)
    for _ in range(200):
        network.mix(X, W, out=X)
    torch.testing.assert_close(X.mean(dim=0), mean, rtol=0, atol=1e-13)
    assert X.std(dim=0).mean() < 0.05 * start


@BOTH
def test_the_direction_comes_from_rounded_rows(wire):
    """X + (W − I)ᵀ Q(X), whether it is written to a new tensor, in place, or added to other rows."""
    W, X = asymmetric(5), random_rows(5, 400, dtype=torch.float64)
    q = Wire(wire, 400).rounded(X)
    expected = X + torch.from_numpy(W.to_dense().T - np.eye(5)) @ q
    network, moved, in_place = SimulatedNetwork(W.graph, wire_dtype=wire), X.clone(), X.clone()
    network.start_mix(X, W).move(moved)
    network.mix(in_place, W, out=in_place)
    for found in (network.mix(X, W), in_place, moved):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_bytes_are_those_on_the_wire_and_an_average_of_all_nodes_is_exact():
    W, X = metropolis_hastings(ring(8)), random_rows(8, 1000, dtype=torch.float32)
    for wire, size in ((None, 4000), (torch.bfloat16, 2000), (torch.int8, 1000 + 4 * 4)):
        network = SimulatedNetwork(W.graph, wire_dtype=wire)
        network.mix(X, W)
        assert network.traffic.parameters == 16 * size
        network.exchange(X[W.graph.arcs.senders.tolist()], W.graph)
        assert network.traffic.parameters == 32 * size
        network.exchange(X[W.graph.arcs.senders.tolist()], W.graph, cargo=SKETCHES)
        assert network.traffic.sketches == 16 * 4000
    J = metropolis_hastings(complete(8))
    mean = SimulatedNetwork(J.graph, wire_dtype=torch.int8).mix(X, J)
    torch.testing.assert_close(mean, X.mean(dim=0).expand(8, -1), rtol=0, atol=1e-6)


def test_precisions_have_names_and_others_are_rejected():
    assert as_wire_dtype("int8") == as_wire_dtype(torch.int8) == torch.int8
    assert as_wire_dtype(None) is None
    assert [Wire.of(torch.zeros(1, d), torch.int8) is None for d in (64, 65)] == [True, False]  # short rows as they are
    rule = r"wire_dtype = torch.float16; rows travel as they are \(None\), in bf"
    refused(NetworkError, rule, as_wire_dtype, torch.float16)
