"""Rows that come in pieces, such as layer by layer, have the sketch of the whole rows, to the last bit."""

import sys
import textwrap
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixwise.errors import SketchError
from mixwise.mixing import gram_matrix
from mixwise.models import mlp, seeded
from mixwise.sketch import CountSketch, ExactSketch, GaussianSketch, count, gaussian
from mixwise.tasks.rows import RowLayout
from process_pool import in_processes
from programs import run_program

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
BLOCK = 50  # short blocks, so that short rows have many; the real ones are far longer


def make(kind, dim):
    return ExactSketch() if kind is ExactSketch else kind(dim, seed=1)


def cut(G, at):
    places = [0, *sorted(at), G.shape[1]]
    return [G[:, start:stop] for start, stop in pairwise(places)]


@pytest.mark.numerics
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_cut_gives_the_bits_of_the_whole_rows(data):
    kind = data.draw(st.sampled_from([CountSketch, GaussianSketch, ExactSketch]))
    dtype = data.draw(st.sampled_from(DTYPES))
    m, d, k = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 230)), data.draw(st.integers(1, 9))
    at = data.draw(st.lists(st.integers(0, d), max_size=12))  # twice the same place: an empty piece
    G = torch.from_numpy(np.random.default_rng(d).standard_normal((m, d))).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(count, "_BLOCK", BLOCK)
        patch.setattr(gaussian, "_NUMBERS", BLOCK * k)
        sketch = make(kind, k)
        whole, streamed = sketch(G), sketch.streamed(iter(cut(G, at)))
        assert streamed.dtype == whole.dtype
        assert torch.equal(streamed, whole)
        if dtype != torch.bfloat16:  # NumPy has none
            np.testing.assert_array_equal(sketch.streamed(cut(G.numpy(), at)), whole.numpy())


@pytest.mark.parametrize("kind", [CountSketch, GaussianSketch])
def test_blocks_of_the_real_length(kind):
    d = 2 * count._BLOCK + 7 if kind is CountSketch else 9_001
    G = torch.from_numpy(np.random.default_rng(0).standard_normal((2, d))).float()
    sketch = make(kind, 100)
    for at in ([1], [count._BLOCK // 30], [d - 1], [d // 2, d // 2 + 1]):
        assert torch.equal(sketch.streamed(cut(G, at)), sketch(G))


@pytest.mark.parametrize("kind", [CountSketch, GaussianSketch, ExactSketch])
def test_gamma_of_updates_streamed_layer_by_layer(kind):
    """The updates of a model's layers are made one after the other in one piece of memory, and never all there."""
    layout = RowLayout(seeded(lambda: mlp((30, 40, 20, 5)), 0), lambda name, p: int(p.ndim < 2))
    stream = torch.Generator().manual_seed(0)
    before, after = (torch.randn(6, layout.dim, generator=stream) for _ in range(2))
    memory = torch.empty(6, max(slot.stop - slot.start for slot in layout.slots))

    def updates():
        for slot in layout.slots:
            piece = memory[:, : slot.stop - slot.start]
            yield torch.sub(before[:, slot.start : slot.stop], after[:, slot.start : slot.stop], out=piece)

    sketch = make(kind, 20)
    np.testing.assert_array_equal(gram_matrix(sketch.streamed(updates())), gram_matrix(sketch(before - after)))


@pytest.mark.parametrize("kind", [CountSketch, GaussianSketch, ExactSketch])
def test_pieces_that_cannot_be_of_the_same_rows(kind):
    sketch, piece = make(kind, 3), torch.ones(2, 5)
    for other in (torch.ones(3, 5), torch.ones(2, 5, dtype=torch.float64), np.ones((2, 5))):
        with pytest.raises(SketchError, match=r"piece 1 has .*all pieces are columns of the same rows"):
            sketch.streamed([piece, other])
    with pytest.raises(SketchError, match=r"shape \(5,\)"):
        sketch.streamed([torch.ones(5)])
    with pytest.raises(SketchError, match="no piece of any row came"):
        sketch.streamed([])
    with pytest.raises(SketchError, match="coordinates"):
        sketch.streamed([piece[:, :0], piece[:, :0]])


@in_processes
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_a_stream_takes_the_memory_of_a_piece():
    """4 rows of 5 million numbers, 84 MB, in pieces of 1 MB."""
    code = textwrap.dedent("""
        import torch
        from mixwise.sketch import CountSketch
        def kilobytes(field):
            return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field))
        sketch, pieces = CountSketch(10), lambda times: (torch.ones(4, 1 << 16) for _ in range(times))
        sketch.streamed(pieces(2))
        before = kilobytes("VmRSS")
        sketch.streamed(pieces(80))
        print((kilobytes("VmHWM") - before) * 1024)
    """)
    done = run_program("-c", code)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 32e6
