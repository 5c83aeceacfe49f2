"""Rows that come in pieces, such as layer by layer, have the sketch of the whole rows, to the last bit."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import normal_rows, refused
from mixwise.errors import SketchError
from mixwise.sketch import CountSketch, ExactSketch, GaussianSketch, random

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
BLOCK = 50  # short blocks, so that short rows have many; the real ones are far longer


def make(kind, dim):
    return ExactSketch() if kind is ExactSketch else kind(dim, seed=1)


def cut(G, at):
    places = [0, *sorted(at), G.shape[1]]
    return [G[:, start:stop] for start, stop in pairwise(places)]


def in_one_place(pieces):
    """The pieces, made one after the other in the same memory, as the updates of a model's layers are."""
    memory = torch.empty_like(pieces[0], size=(len(pieces[0]), sum(piece.shape[1] for piece in pieces)))
    for piece in pieces:
        yield memory[:, : piece.shape[1]].copy_(piece)


@pytest.mark.numerics
@settings(max_examples=150)
@given(data=st.data())
def test_any_cut_gives_the_bits_of_the_whole_rows(data):
    kind = data.draw(st.sampled_from([CountSketch, GaussianSketch, ExactSketch]))
    dtype = data.draw(st.sampled_from(DTYPES))
    m, d, k = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 230)), data.draw(st.integers(1, 9))
    at = data.draw(st.lists(st.integers(0, d), max_size=12))  # twice the same place: an empty piece
    G = torch.from_numpy(normal_rows(m, d, seed=d)).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "_COORDINATES", BLOCK)
        patch.setattr(random, "_NUMBERS", BLOCK * k)
        sketch = make(kind, k)
        whole, streamed = sketch(G), sketch.streamed(in_one_place(cut(G, at)))
        assert streamed.dtype == whole.dtype
        assert torch.equal(streamed, whole)
        if dtype != torch.bfloat16:  # NumPy has none
            np.testing.assert_array_equal(sketch.streamed(cut(G.numpy(), at)), whole.numpy())


@pytest.mark.parametrize("kind", [CountSketch, GaussianSketch])
def test_blocks_of_the_real_length(kind):
    d = 2 * random._COORDINATES + 7 if kind is CountSketch else 9_001
    G = torch.from_numpy(normal_rows(2, d)).float()
    sketch = make(kind, 100)
    for at in ([1], [random._COORDINATES // 30], [d - 1], [d // 2, d // 2 + 1]):
        assert torch.equal(sketch.streamed(cut(G, at)), sketch(G))


@pytest.mark.parametrize("kind", [CountSketch, GaussianSketch, ExactSketch])
def test_pieces_that_cannot_be_of_the_same_rows(kind):
    sketch, piece = make(kind, 3), torch.ones(2, 5)
    for other in (torch.ones(3, 5), torch.ones(2, 5, dtype=torch.float64), np.ones((2, 5))):
        refused(SketchError, r"piece 1 has .*all pieces are columns of the same rows", sketch.streamed, [piece, other])
    refused(SketchError, r"shape \(5,\)", sketch.streamed, [torch.ones(5)])
    refused(SketchError, "no pieces of rows were given", sketch.streamed, [])
    refused(SketchError, "coordinates", sketch.streamed, [piece[:, :0], piece[:, :0]])
