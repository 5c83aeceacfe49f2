"""Sketches of updates: a Gaussian matrix drawn by torch, as in the paper."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from mixwise.seeding import generator, numpy_generator
from mixwise.sketch import CountSketch, GaussianSketch

from .measure import Benchmark, Contestant, Contestants

BLOCK = 1 << 18  # numbers of the Gaussian matrix that exist at a time


def benchmarks(tiny: bool = False) -> Iterator[Benchmark]:
    d = 10_000 if tiny else 11_000_000  # the parameters of a ResNet-18
    yield Benchmark(
        "A sketch of 11 million numbers to k = 100: how much faster than A @ u with a Gaussian A?",
        partial(speed, d, 100), 50, "torch.randn(k, c) @ u", limit="a copy of the row", rounds=5,
    )  # fmt: skip
    yield Benchmark(
        "Standard error of the inner products of 8 rows, k = 100: how much larger than with a Gaussian A?",
        partial(precision, 40 if tiny else 400), 1.25, "GaussianSketch", "lower", rounds=3, unit="%",
    )  # fmt: skip


def large(tiny: bool = False) -> Iterator[Benchmark]:
    """A product with the Gaussian matrix takes 40 s and more."""
    d = 10_000 if tiny else 11_000_000
    yield Benchmark(
        "A sketch of 11 million numbers to k = 1,000: how much faster than A @ u with a Gaussian A?",
        partial(speed, d, 1000), 400, "torch.randn(k, c) @ u", limit="a copy of the row", rounds=1,
    )  # fmt: skip


def speed(d: int, k: int) -> Contestants:
    """One float32 row, drawing the operator included."""
    row = torch.randn(1, d, generator=generator(0, "benchmark", "row"))
    other = torch.empty_like(row)
    return {
        "mixwise, CountSketch": Contestant(lambda i: CountSketch(k, i)(row)),
        "torch.randn(k, c) @ u": Contestant(partial(gaussian_product, row=row[0], k=k)),
        "a copy of the row": Contestant(lambda _: other.copy_(row)),
    }


def gaussian_product(seed: int, row: torch.Tensor, k: int) -> torch.Tensor:
    """A u / √k with blocks A_b (k, c) of torch.randn."""
    random = generator(seed, "benchmark", "gaussian")
    S = torch.zeros(k)
    for u in row.split(BLOCK // k):
        S += torch.randn(k, len(u), generator=random) @ u
    return S / k**0.5


def precision(seeds: int, m: int = 8, d: int = 20_000, layers: int = 20, k: int = 100) -> Contestants:
    """Rows like updates: a common and an own part, and layers whose entries differ in size by orders of magnitude."""
    draw = numpy_generator(0, "benchmark", "rows")
    size = np.repeat(np.exp(1.5 * draw.standard_normal(layers)), d // layers)
    G = size * (0.7 * draw.standard_normal(d) + draw.standard_normal((m, d)))
    true, pairs = G @ G.T, np.triu_indices(m)

    def error(make: type[CountSketch] | type[GaussianSketch], i: int) -> float:
        """In percent of the root mean square of the inner products."""
        drawn = (make(k, seeds * i + seed)(G) for seed in range(seeds))
        errors = [(S @ S.T - true)[pairs] for S in drawn]
        return 100 * float(np.sqrt(np.mean(np.square(errors)) / np.mean(np.square(true[pairs]))))

    return {f"{make.__name__}": Contestant(partial(error, make)) for make in (CountSketch, GaussianSketch)}
