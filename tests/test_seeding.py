"""Named streams: the same name gives the same draws everywhere, another name gives others."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mixwise as mw
from builders import cases, refused, simulated
from mixwise.algorithms import Quantize
from mixwise.data import FlipsAndCrops, NodeBatches, Partition
from mixwise.seeding import generator, numpy_generator, stream

names = st.lists(st.one_of(st.text(max_size=4), st.integers(-5, 5)), max_size=4)


def test_streams_are_pinned():
    """Old results can be reproduced only if these never change; Python's own hashes differ from process to process."""
    assert stream(0, "noise", 3) == 1110601894404161091
    assert stream(1, "sketch", 7, "count") == 7963289934258591976
    assert numpy_generator(0, "x").integers(1000, size=3).tolist() == [254, 506, 777]
    assert torch.randint(1000, (3,), generator=generator(0, "x")).tolist() == [923, 447, 381]


@given(a=names, b=names, seed=st.integers(0, 3), other=st.integers(0, 3))
def test_different_names_are_different_streams(a, b, seed, other):
    same = seed == other and a == b
    assert (stream(seed, *a) == stream(other, *b)) == same


def test_no_seed_is_no_seed():
    refused(mw.MixwiseError, "seed = None; give a whole number", stream, None, "noise")


def test_names_do_not_run_together():
    names = [(0, "ab", "c"), (0, "a", "bc"), (0, 1), (0, "1"), (0, "1", "2"), (0, "12"), (0, 0), (0,), (1, 2), (12,)]
    names += [(0, "a\x1f'b'"), (0, "a", "b"), (0, ""), (-1,), (1,)]
    assert len({stream(*name) for name in names}) == len(names)


@settings(max_examples=100)
@given(seed=st.integers(-(2**80), 2**80), name=names)
def test_any_integer_is_a_seed_and_any_stream_fits_a_generator(seed, name):
    assert 0 <= stream(seed, *name) < 2**63
    generator(seed, *name)
    numpy_generator(seed, *name)


def test_equal_names_give_equal_draws_and_new_generators():
    before = torch.get_rng_state(), str(np.random.get_state())
    a, b = generator(5, "x", 1), generator(5, "x", 1)
    assert a is not b
    assert torch.equal(torch.randn(10, generator=a), torch.randn(10, generator=b))
    assert not torch.equal(torch.randn(10, generator=a), torch.randn(10, generator=generator(5, "x", 1)))
    first, second = (numpy_generator(5, "x", 1).standard_normal(10) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert torch.equal(torch.get_rng_state(), before[0])  # no global generator is touched
    assert str(np.random.get_state()) == before[1]


def test_streams_are_independent():
    """5,000 neighboring names: draws are uncorrelated and uniform, within 5 standard errors."""
    first = np.array([numpy_generator(0, "noise", k).random(2) for k in range(5000)])
    assert abs(first.mean() - 0.5) <= 5 * (1 / 12 / first.size) ** 0.5
    assert abs(np.corrcoef(first[:-1, 0], first[1:, 0])[0, 1]) <= 5 / 5000**0.5
    assert abs(np.corrcoef(first.T)[0, 1]) <= 5 / 5000**0.5


def training_on_quadratics():
    training = simulated(mw.mixing.metropolis_hastings(mw.graphs.ring(6)), graph=mw.graphs.ring(6))
    return [(training.step().losses.tolist(), training.X.tolist()) for _ in range(2)]


IMAGES = torch.arange(64 * 16).reshape(64, 1, 4, 4)
ROWS = torch.linspace(-1, 1, 40, dtype=torch.float32).reshape(2, 20)


@cases(
    "draws",
    training_on_quadratics,
    lambda: FlipsAndCrops(padding=2)(IMAGES, generator(0, "augment")).tolist(),
    lambda: NodeBatches(Partition(([10], range(10))), 4, seed=0)(1, 2).tolist(),
    lambda: Quantize(2)(ROWS.clone(), range(2), 0).rows.tolist(),
    lambda: mw.tasks.two_class_quadratics(4).b.tolist(),
)
@pytest.mark.parametrize("default", [torch.float64, "meta"])
def test_draws_do_not_depend_on_the_defaults_of_torch(draws, default):
    expected = draws()
    try:
        (torch.set_default_device if default == "meta" else torch.set_default_dtype)(default)
        found = draws()
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert found == expected
