"""Sketches keep inner products, and one row's sketch does not know about the other rows."""

import json
import os
import subprocess
import sys
import textwrap
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import cases, normal_rows, peak_memory, refused
from mixwise import sketch as sketches
from mixwise.errors import SketchError
from mixwise.sketch import CountSketch, ExactSketch, GaussianSketch, Sketch
from process_pool import in_processes
from processors import PROCESSORS, environment
from programs import run_program

_BLOCK = sketches._COORDINATES
RANDOM = [GaussianSketch, CountSketch]
ALL = [ExactSketch(), GaussianSketch(7, seed=3), CountSketch(7, seed=3)]


def extra_memory(prepare: str, call: str) -> int:
    """How many bytes `call` takes in a process of its own, over what it held after `prepare`.

    The peak of the process (VmHWM; ru_maxrss would start at the parent's) over what it held before (VmRSS).
    """
    code = f"""
        import numpy as np, torch
        from mixwise.sketch import CountSketch, GaussianSketch
        def kilobytes(field):
            return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field))
        {prepare}
        before = kilobytes("VmRSS")
        {call}
        print((kilobytes("VmHWM") - before) * 1024)
    """
    run = run_program("-c", textwrap.dedent(code))
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


# --- inner products ---


def spread(make, u: np.ndarray, v: np.ndarray, k: int) -> float:
    """Var⟨Su, Sv⟩, as the docstrings state it."""
    variance = (u @ u) * (v @ v) + (u @ v) ** 2
    if make is CountSketch:
        variance -= 2 * (u**2) @ (v**2)
    return variance / k


@pytest.mark.parametrize("make", RANDOM)
@pytest.mark.parametrize("k", [1, 4, 50])
@pytest.mark.parametrize("d", [2, 30, 400])
def test_inner_products_are_unbiased_with_the_stated_variance(make, k, d):
    """As in the proof of Proposition 3, which prints the mean without the factor 1/k: it does not depend on d."""
    u, v = normal_rows(2, d, seed=d)
    v, runs = v + 0.5 * u, 3000
    S = np.stack([make(k, seed=seed)(np.stack([u, v])) for seed in range(runs)])
    for a, b, x, y in [(u, v, S[:, 0], S[:, 1]), (u, u, S[:, 0], S[:, 0])]:
        products, variance = (x * y).sum(axis=1), spread(make, a, b, k)
        # 4.5 standard errors: one such test in 150,000 fails by chance. The second term is rounding, for variance 0.
        assert abs(products.mean() - a @ b) <= 4.5 * np.sqrt(variance / runs) + 1e-9 * abs(a @ b)
        # The estimated variance has its own spread, which the fourth moment of the sample tells.
        squares = (products - a @ b) ** 2
        assert abs(squares.mean() - variance) <= 4.5 * squares.std() / np.sqrt(runs) + 1e-9 * (a @ b) ** 2


# --- the operators ---


@pytest.mark.parametrize("k", [1, 2, 100])
def test_every_column_of_the_count_sketch_has_one_sign(k):
    C = CountSketch(k, seed=5)(np.eye(3000)).T  # (k, d)
    assert ((C != 0).sum(axis=0) == 1).all()
    assert set(np.unique(C[C != 0])) == {-1.0, 1.0}
    # Rows and signs are uniform: each of the 2k pairs has d / 2k columns, within 5 standard deviations.
    for sign in (-1, 1):
        counts, mean = (sign == C).sum(axis=1), 3000 / (2 * k)
        assert np.abs(counts - mean).max() <= 5 * np.sqrt(mean) + 1


def test_the_count_sketch_is_one_operator_over_all_blocks():
    places = [0, 1, _BLOCK - 1, _BLOCK, 2 * _BLOCK - 1, 2 * _BLOCK]
    d = 2 * _BLOCK + 1
    unit = np.zeros((len(places), d))
    unit[range(len(places)), places] = 1
    C = CountSketch(50, seed=2)(unit).T
    assert (np.abs(C).sum(axis=0) == 1).all()
    u = np.zeros((1, d))
    u[0, places] = [3, -1, 4, 1, -5, 9]
    np.testing.assert_array_equal(CountSketch(50, seed=2)(u)[0], C @ u[0, places])


def test_draws_of_many_buckets_need_more_than_16_bits():
    C = CountSketch(40_000, seed=0)(np.eye(300)).T
    assert (np.abs(C).sum(axis=0) == 1).all()
    assert np.abs(C).argmax(axis=0).max() >= 32_768


@pytest.mark.parametrize(("k", "d"), [(1, 300), (1000, 700), (3, 40)])
def test_the_gaussian_sketch_is_a_product_with_a_gaussian_matrix(k, d):
    A = GaussianSketch(k, seed=4)(np.eye(d)).T * np.sqrt(k)  # (k, d)
    G = normal_rows(5, d)
    np.testing.assert_allclose(GaussianSketch(k, seed=4)(G), G @ A.T / np.sqrt(k), atol=1e-12 * d)
    # Moments 1, 2 and 4 of N(0, 1) are 0, 1 and 3, with variances 1, 2 and 96 per entry.
    for moment, value, variance in [(1, 0, 1), (2, 1, 2), (4, 3, 96)]:
        assert abs((A**moment).mean() - value) <= 4.5 * np.sqrt(variance / A.size)
    assert len(np.unique(A)) > 0.99 * A.size  # no block repeats another


# --- seeds ---


@pytest.mark.parametrize("make", RANDOM)
def test_a_seed_names_the_operator_and_each_mixing_has_its_own(make):
    G = normal_rows(3, 500)
    sketch: Sketch = make(20, seed=8)
    assert sketch == make(20, seed=8) == make(np.int64(20), seed=np.int32(8))
    assert hash(sketch) == hash(make(20, seed=8))
    np.testing.assert_array_equal(sketch(G), make(20, seed=8)(G))
    assert (sketch(G) != make(20, seed=9)(G)).any()
    family = [sketch, *(sketch.fresh(t) for t in range(5)), sketch.fresh(0).fresh(0), make(20, seed=9).fresh(0)]
    assert len({s.seed for s in family}) == len(family)
    assert all(s.dim == 20 for s in family)
    assert sketch.fresh(3) == sketch.fresh(3)


@pytest.mark.numerics
def test_the_same_operators_on_another_processor_and_with_other_defaults_of_torch():
    here = [make(10, seed=6).fresh(2)(np.arange(3000.0)[None] / 3000)[0].tolist() for make in RANDOM]
    code = textwrap.dedent("""
        import json, numpy as np, torch
        from mixwise.sketch import CountSketch, GaussianSketch
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        u = np.arange(3000.0)[None] / 3000
        print(json.dumps([make(10, seed=6).fresh(2)(u)[0].tolist() for make in (GaussianSketch, CountSketch)]))
    """)
    without = environment(*PROCESSORS["no vector extensions"][1:])
    there = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, env=os.environ | without)
    assert here == json.loads(there.stdout)


# --- one row does not know the others ---


@pytest.mark.numerics
@pytest.mark.parametrize("make", RANDOM)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [1, 33, 1000])
@pytest.mark.usefixtures("one_thread")
def test_a_row_has_one_sketch_to_the_last_bit(make, dtype, k):
    d = 70_001 if make is CountSketch else 5_001  # odd, and more than one block
    G = torch.from_numpy(normal_rows(6, d)).to(dtype)
    sketch = make(k, seed=1)
    torch.set_num_threads(2)
    S = sketch(G)
    torch.set_num_threads(1)
    assert torch.equal(sketch(G), S)
    assert torch.equal(sketch(G.flip(0)).flip(0), S)
    assert torch.equal(sketch(G[2:5]), S[2:5])
    columns = G.T.contiguous().T  # the numbers of a row lie 6 apart
    assert torch.equal(sketch(columns), S)
    wide = torch.zeros(6, d + 3, dtype=dtype)
    wide[:, 3:] = G  # rows that start at an odd place
    assert torch.equal(sketch(wide[:, 3:]), S)
    for i in range(6):
        assert torch.equal(sketch(G[i : i + 1].clone())[0], S[i])


@pytest.mark.parametrize("sketch", ALL, ids=repr)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numpy_and_torch_rows_have_the_same_sketch(sketch, dtype):
    G = normal_rows(3, 501).astype(dtype)
    G.flags.writeable = False
    S, T = sketch(G), sketch(torch.tensor(G))
    assert isinstance(S, np.ndarray)
    assert isinstance(T, torch.Tensor)
    np.testing.assert_array_equal(S, T.numpy())
    assert S.dtype == T.numpy().dtype == (np.float64 if dtype == np.float64 else np.float32)


@pytest.mark.parametrize("sketch", ALL, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_floats_are_added_up_in_long_ones(sketch, dtype):
    G = torch.ones(2, 3000, dtype=dtype)  # in bfloat16, 256 + 1 = 256
    S = sketch(G)
    assert S.dtype == torch.float32
    assert torch.equal(S, sketch(G.float()))


@pytest.mark.parametrize("sketch", ALL, ids=repr)
def test_sketches_take_parameters_and_leave_rows_alone(sketch):
    G = torch.nn.Parameter(torch.from_numpy(normal_rows(2, 9)))
    before, S = G.detach().clone(), sketch(G)
    assert not S.requires_grad
    assert torch.equal(G.detach(), before)
    if sketch != ExactSketch():
        assert torch.equal(sketch.streamed([G[:, :4], G[:, 4:]]), S)
        assert torch.equal(sketch.streamed([G]), S)


def test_the_exact_sketch_is_the_row_and_random_ones_have_their_dim():
    G = normal_rows(4, 10)
    np.testing.assert_array_equal(ExactSketch()(G), G)
    assert ExactSketch().fresh(3) == ExactSketch()
    for m in (2, 0):
        assert [s(normal_rows(m, 55)).shape for s in ALL] == [(m, 55), (m, 7), (m, 7)]
    assert GaussianSketch().dim == CountSketch().dim == 100


# --- memory ---


@in_processes
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize(("make", "d"), [(CountSketch, 11_000_000), (GaussianSketch, 600_000)])
def test_the_operator_is_never_stored(make, d):
    prepare = f"sketch, row = {make.__name__}(100), np.ones((1, {d}), dtype=np.float32)"
    warm_up = "sketch(np.ones((1, 10), dtype=np.float32))"  # what the first call loads is not the sketch's
    # The matrices would take 4400 and 240 MB in float32.
    assert extra_memory(f"{prepare}; {warm_up}", "sketch(row)") < 64e6


@in_processes
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_a_stream_takes_the_memory_of_a_piece():
    """4 rows of 5 million numbers, 84 MB, in pieces of 1 MB."""
    pieces = "sketch.streamed(torch.ones(4, 1 << 16) for _ in range({}))"
    assert extra_memory(f"sketch = CountSketch(10); {pieces.format(2)}", pieces.format(80)) < 32e6


# --- errors: the value, the rule, the remedy ---


@pytest.mark.parametrize("sketch", ALL, ids=repr)
@cases(
    "rows, message",
    (np.ones(5), r"shape \(5,\).*pass u\[None\]"),
    (torch.ones(2, 3, 4), r"shape \(2, 3, 4\)"),
    (np.ones((3, 0)), r"shape \(3, 0\) have no coordinates"),
    (np.ones((3, 2), dtype=np.int64), "dtype int64.*convert"),
    (torch.ones(3, 2, dtype=torch.complex64), "dtype torch.complex64.*convert"),
    ([[1.0, 2.0]], "type list.*NumPy array or a torch tensor"),
)
def test_rows_that_have_no_sketch(sketch, rows, message):
    refused(SketchError, message, sketch, rows)


# --- rows that come in pieces, such as layer by layer ---
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SHORT = 50  # short blocks, so that short rows have many; the real ones are far longer


def cut_at(G, at):
    places = [0, *sorted(at), G.shape[1]]
    return [G[:, start:stop] for start, stop in pairwise(places)]


def in_one_place(pieces):
    """The pieces, made one after the other in the same memory, as the updates of a model's layers are."""
    memory = torch.empty_like(torch.cat(pieces, dim=1))
    for piece in pieces:
        yield memory[:, : piece.shape[1]].copy_(piece)


@pytest.mark.numerics
@settings(max_examples=150)
@given(data=st.data())
def test_any_cut_gives_the_bits_of_the_whole_rows(data):
    kind = data.draw(st.sampled_from(RANDOM))
    dtype = data.draw(st.sampled_from(DTYPES))
    m, d, k = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 230)), data.draw(st.integers(1, 9))
    at = data.draw(st.lists(st.integers(0, d), max_size=12))  # twice the same place: an empty piece
    G = torch.from_numpy(normal_rows(m, d, seed=d)).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sketches, "_COORDINATES", SHORT)
        patch.setattr(sketches, "_NUMBERS", SHORT * k)
        sketch = kind(k, seed=1)
        whole, streamed = sketch(G), sketch.streamed(in_one_place(cut_at(G, at)))
        assert streamed.dtype == whole.dtype
        assert torch.equal(streamed, whole)
        if dtype != torch.bfloat16:  # NumPy has none
            np.testing.assert_array_equal(sketch.streamed(cut_at(G.numpy(), at)), whole.numpy())


@pytest.mark.parametrize("kind", RANDOM)
def test_blocks_of_the_real_length(kind):
    d = 2 * _BLOCK + 7 if kind is CountSketch else 9_001
    G = torch.from_numpy(normal_rows(2, d)).float()
    sketch = kind(100, seed=1)
    for at in ([1], [_BLOCK // 30], [d - 1], [d // 2, d // 2 + 1]):
        assert torch.equal(sketch.streamed(cut_at(G, at)), sketch(G))


@pytest.mark.parametrize("kind", RANDOM)
def test_pieces_that_cannot_be_of_the_same_rows(kind):
    sketch, piece = kind(3), torch.ones(2, 5)
    for other in (torch.ones(3, 5), torch.ones(2, 5, dtype=torch.float64), np.ones((2, 5))):
        refused(SketchError, r"piece 1 has .*all pieces are columns of the same rows", sketch.streamed, [piece, other])
    refused(SketchError, r"shape \(5,\)", sketch.streamed, [torch.ones(5)])
    refused(SketchError, "no pieces of rows were given", sketch.streamed, [])
    refused(SketchError, "coordinates", sketch.streamed, [piece[:, :0], piece[:, :0]])


def test_pieces_of_short_rows_of_many_nodes_take_little_memory():
    pieces = [np.ones((20_000, 4), dtype=np.float32)] * 2
    S, peak = peak_memory(lambda: CountSketch(10).streamed(pieces))
    np.testing.assert_array_equal(S, CountSketch(10)(np.concatenate(pieces, axis=1)))
    assert peak < 50e6  # a block of 65,536 columns would take 5 GB
