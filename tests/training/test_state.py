"""States as files hold them: what is encoded and decoded is the same, however the nodes are divided over processes."""

import json

import numpy as np
import pytest
import torch

from mixwise.graphs import complete, ring, star
from mixwise.mixing import metropolis_hastings, uniform_sender
from mixwise.state import State, decode, encode, owner_of

N = 6
ALL = range(N)
W = metropolis_hastings(complete(N))
TREE = star(N)
ARCS = list(zip(TREE.arcs.senders[TREE.arcs.by_receiver], TREE.arcs.receivers[TREE.arcs.by_receiver], strict=True))


def example(nodes=ALL) -> State:
    """A state with everything that a state can hold; row i, and the arc from i to j, have values of their own."""
    rows = torch.arange(2.0 * N, dtype=torch.float64).reshape(N, 2)[nodes.start : nodes.stop]
    arcs = torch.tensor([[10.0 * i + j] for i, j in ARCS if j in nodes])
    shared = {"number": 0.1, "text": "tied", "none": None, "truth": True, "list": [[1, 2.5]], "json": {"graph": 1}}
    shared |= {"tensor": torch.eye(2), "array": np.arange(3.0), "graph": ring(5), "whole": W}
    shared |= {"W": W.restricted_to(nodes), "rounds": (W, uniform_sender(ring(N)), 3)}
    inner = State(arcs={"arrived": arcs}, graph=TREE, parts={"deeper": State(rows={"x": rows.float()})})
    return State({"X": rows}, shared=shared, parts={"inner": inner}, scratch={"problem": object()})


def assert_equal(found: State, expected: State):
    for (path, one), (other_path, other) in zip(found.walk(), expected.walk(), strict=True):
        assert (path, one.graph, one.scratch) == (other_path, other.graph, {})
        assert one.rows.keys() | one.arcs.keys() == other.rows.keys() | other.arcs.keys()
        for name, value in {**other.rows, **other.arcs}.items():
            torch.testing.assert_close({**one.rows, **one.arcs}[name], value, rtol=0, atol=0)
        assert one.shared.keys() == other.shared.keys()
        for name, value in other.shared.items():
            if isinstance(value, torch.Tensor | np.ndarray):
                np.testing.assert_array_equal(one.shared[name], value)
                assert type(one.shared[name]) is type(value)
            else:
                assert one.shared[name] == value


def redivided(blocks, nodes) -> State:
    """What the owner of `nodes` decodes of the states of other blocks, as a checkpoint reads them."""
    pieces = {}
    for block in blocks:
        encoded = encode(example(block), block)
        for name, value in encoded.tensors.items():
            path, owner = owner_of(name)
            own = [node in nodes for node in block]
            if owner == "arcs":
                own = np.repeat(own, encoded.arcs[path])
            pieces.setdefault(name, []).append(value if owner == "shared" else value[torch.tensor(own)])
    whole = {name: found[0] if owner_of(name)[1] == "shared" else torch.cat(found) for name, found in pieces.items()}
    values = encode(example(blocks[0]), blocks[0]).values
    return decode(whole, json.loads(json.dumps(values)), nodes)


def test_everything_comes_back():
    encoded = encode(example(), ALL)
    found = decode(encoded.tensors, json.loads(json.dumps(encoded.values)), ALL)
    assert_equal(found, example())


@pytest.mark.parametrize("nodes", [range(2), range(2, 6), range(3, 4), ALL], ids=str)
@pytest.mark.parametrize("blocks", [[range(3), range(3, 6)], [range(1), range(1, 4), range(4, 6)]], ids=str)
def test_any_owner_takes_its_part_whatever_the_division_was(blocks, nodes):
    """Rows, arcs, and the rows and columns of a matrix that no process knows as a whole."""
    found = redivided(blocks, nodes)
    if nodes == ALL:
        assert found.shared["W"] == W
    assert_equal(found, example(nodes))


def test_loading_keeps_scratch_and_replaces_everything_else():
    state, saved = example(), State({"X": torch.zeros(1)}, parts={"inner": State(shared={"t": 3})})
    problem = state.scratch["problem"]
    state.load(saved)
    assert state.scratch["problem"] is problem
    assert (state.shared, state.parts["inner"].shared) == ({}, {"t": 3})
    assert state.parts["inner"].arcs == state.parts["inner"].parts["deeper"].rows == {}
