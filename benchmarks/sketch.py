"""Sketches: speed against a Gaussian matrix drawn by torch, precision, and memory.

Speed is measured on one thread: the product of a block with a row is too short to gain from a second one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from benchmarks.measure import Measurement, extra_memory, in_turns, in_words, medians, speedup
from mixwise.seeding import generator, numpy_generator
from mixwise.sketch import CountSketch, GaussianSketch

D = 11_000_000  # the parameters of a ResNet-18
BLOCK = 1 << 18  # numbers of the Gaussian matrix that exist at a time


def measurements() -> Iterator[Measurement]:
    """Speed, precision, memory."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield speed(k=100, bar=50, rounds=5)
        yield speed(k=1000, bar=400, rounds=1)  # torch takes 40 s and more
        yield precision(k=100, bar=1.25)
    finally:
        torch.set_num_threads(threads)
    yield memory(CountSketch, 100, D)
    yield memory(CountSketch, 1000, D)
    yield memory(GaussianSketch, 100, 2_000_000)


def speed(k: int, bar: float, rounds: int) -> Measurement:
    """One float32 row of length d, drawing the operator included."""
    row = torch.randn(1, D, generator=generator(0, "benchmark", "row"))
    CountSketch(k)(row[:, :BLOCK])
    torch_product(0, row[:, :BLOCK], k)
    seeds = [[10 * r + i for i in range(5)] for r in range(rounds)]
    contenders: dict[str, tuple[Callable[[int], object], int]] = {
        "CountSketch": (lambda seed: CountSketch(k, seed)(row), 5),
        "torch": (partial(torch_product, row=row, k=k), 1),
    }
    seconds = in_turns(seeds, contenders)
    times = medians(seconds)
    return Measurement(
        f"CountSketch, d = 11 million, k = {k}",
        speedup(seconds["torch"], seconds["CountSketch"]),
        "×",
        bar,
        "higher",
        in_words(times["CountSketch"]),
        f"{in_words(times['torch'])} (torch.randn(k, c) @ row)",
        {"median_seconds": times, "calls": {name: sum(map(len, turns)) for name, turns in seconds.items()}},
    )


def torch_product(seed: int, row: torch.Tensor, k: int) -> torch.Tensor:
    """A u / √k with blocks A_b (k, c) of torch.randn: what one writes without a library."""
    random = generator(seed, "benchmark", "gaussian")
    c = BLOCK // k
    S = torch.zeros(k)
    for start in range(0, row.shape[1], c):
        u = row[0, start : start + c]
        S += torch.randn(k, len(u), generator=random) @ u
    return S / k**0.5


def precision(k: int, bar: float, m: int = 8, d: int = 20_000, seeds: int = 400) -> Measurement:
    """The standard error of all inner products of m rows: the count sketch's over the Gaussian's."""
    G = uneven_rows(m, d)
    true = G @ G.T
    pairs = np.triu_indices(m)

    def standard_error(make: type[CountSketch] | type[GaussianSketch]) -> float:
        errors = [((S := make(k, seed)(G)) @ S.T - true)[pairs] for seed in range(seeds)]
        return float(np.sqrt(np.mean(np.square(errors))))

    count, gaussian = standard_error(CountSketch), standard_error(GaussianSketch)
    size = float(np.sqrt(np.mean(np.square(true[pairs]))))
    return Measurement(
        f"standard error of inner products, k = {k}",
        count / gaussian,
        "×",
        bar,
        "lower",
        f"{count / size:.2%}",
        f"{gaussian / size:.2%} (GaussianSketch)",
        {"standard_error": {"CountSketch": count, "GaussianSketch": gaussian}, "m": m, "d": d, "seeds": seeds},
    )


def uneven_rows(m: int, d: int, layers: int = 20) -> np.ndarray:
    """Rows like updates: a common and an own part, and layers whose entries differ in size by orders of magnitude."""
    random = numpy_generator(0, "benchmark", "rows")
    size = np.repeat(np.exp(1.5 * random.standard_normal(layers)), d // layers)
    return size * (0.7 * random.standard_normal(d) + random.standard_normal((m, d)))


def memory(make: type[CountSketch] | type[GaussianSketch], k: int, d: int, bar: float = 64.0) -> Measurement:
    """What one call adds to the row it is given."""
    name = make.__name__
    extra = extra_memory(
        f"import numpy as np; from mixwise.sketch import {name}; sketch = {name}({k}); "
        f"sketch(np.ones((1, 10), dtype=np.float32)); row = np.ones((1, {d}), dtype=np.float32)",
        "sketch(row)",
    )
    return Measurement(
        f"extra memory of {name}, d = {d // 10**6} million, k = {k}",
        extra,
        "MB",
        bar,
        "lower",
        "not measured" if extra is None else f"{extra:.1f} MB",
        f"{4e-6 * k * d:,.0f} MB (the matrix)",
    )
