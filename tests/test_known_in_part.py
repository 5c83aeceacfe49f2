"""A mixing matrix of which only the rows and columns of some nodes are known."""

import pickle

import numpy as np
import pytest
import torch

from builders import asymmetric
from mixwise.errors import MixingError
from mixwise.graphs import complete, torus
from mixwise.mixing import (
    MixingMatrix,
    consensus_factor,
    eigenvalues,
    gradient_mixing_error,
    lazy,
    metropolis_hastings,
    spectral_gap,
    symmetrized,
)
from mixwise.plan import Plan
from mixwise.state import State, decode, encode
from planning import reloaded

W = asymmetric(8, graph=complete(8))


def part(W: MixingMatrix, nodes: range) -> MixingMatrix:
    """What the owner of these nodes knows."""
    known = np.isin(W.graph.pattern.rows, nodes) | np.isin(W.graph.pattern.cols, nodes)
    return MixingMatrix(W.graph, np.where(known, W.weights, 0.0), W.kind, W.tolerance, nodes)


def test_rows_and_columns_of_the_known_nodes_are_checked_and_no_others():
    nodes = range(2, 5)
    known = part(W, nodes)
    assert (known.whole, W.whole) == (False, True)
    np.testing.assert_array_equal(known.to_dense()[2:5], W.to_dense()[2:5])
    np.testing.assert_array_equal(known.to_dense()[:, 2:5], W.to_dense()[:, 2:5])
    assert known.to_dense()[6, 7] == 0
    for touched in (2, 5):  # a weight that node 2 or node 4 sends or hears: its row, or its column, is wrong now
        weights = known.weights.copy()
        weights[(known.graph.pattern.rows == touched) & (known.graph.pattern.cols == touched - 1)] += 0.1
        with pytest.raises(MixingError, match=rf"{'row 2' if touched == 2 else 'column 4'} of W sums to"):
            MixingMatrix(W.graph, weights, nodes=nodes)


def test_weights_of_other_nodes_are_rejected():
    with pytest.raises(MixingError, match=r"W\[0, 0\] = .*, but only the weights of nodes 2 to 4 are known here"):
        MixingMatrix(W.graph, W.weights, nodes=range(2, 5))
    for nodes in (range(0), range(3, 9), range(0, 8, 2)):
        with pytest.raises(MixingError, match=r"the known nodes are a range of one or more of 0\.\.7"):
            MixingMatrix(W.graph, np.zeros_like(W.weights), nodes=nodes)


@pytest.mark.parametrize("function", [consensus_factor, spectral_gap, eigenvalues])
def test_what_needs_all_weights_says_so(function):
    known = part(W, range(2, 5))
    with pytest.raises(MixingError, match="needs all weights, but only those of nodes 2 to 4 of 8 are known here"):
        function(known)


def test_mixing_errors_products_and_moves_need_all_weights():
    known = part(W, range(2, 5))
    for ask in (
        lambda: gradient_mixing_error(np.ones((8, 2)), known),
        lambda: Plan((known,)).params_product,
        lambda: known.permuted(range(8)),
    ):
        with pytest.raises(MixingError, match="needs all weights"):
            ask()
    large = part(metropolis_hastings(torus(10, 10)), range(3))
    with pytest.raises(MixingError, match="needs all weights"):
        gradient_mixing_error(np.ones((100, 2)), large)


def test_it_is_a_value():
    nodes = range(2, 5)
    known = part(W, nodes)
    assert known == part(W, nodes)
    assert known != part(W, range(2, 6))
    assert pickle.loads(pickle.dumps(known)) == known
    assert repr(known).endswith("kind='doubly', nodes 2 to 4 known)")


def test_lazy_and_symmetrized_keep_what_is_known():
    for change in (lazy, symmetrized):
        assert change(part(W, range(2, 5))) == part(change(W), range(2, 5))


@pytest.mark.parametrize("nodes", [range(8), range(2, 5), range(7, 8)])
def test_a_state_keeps_what_is_known(nodes):
    known = part(W, nodes) if len(nodes) < 8 else W
    assert reloaded(State(shared={"W": known}), nodes).shared == {"W": known}


def test_parts_are_put_together_from_what_their_nodes_keep():
    """As a checkpoint of three processes is read by two, or by one."""
    kept = [encode(State(shared={"W": part(W, nodes)}), nodes) for nodes in (range(3), range(3, 4), range(4, 8))]
    shared = kept[0].tensors.keys() - {"rows/W@sent", "rows/W@heard"}
    assert all(torch.equal(kept[0].tensors[name], other.tensors[name]) for other in kept for name in shared)
    rows = {name: torch.cat([each.tensors[name] for each in kept]) for name in kept[0].tensors.keys() - shared}
    for nodes in (range(8), range(5)):
        tensors = kept[0].tensors | {name: value[: len(nodes)] for name, value in rows.items()}
        assert decode(tensors, kept[0].values, nodes).shared["W"] == part(W, nodes)
