"""The paper's sketch: a Gaussian matrix, drawn block by block and never stored (paper, Alg. CE-GME)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mixwise.parts import part
from mixwise.seeding import numpy_generator
from mixwise.sketch.base import BlockMap, FloatArray, RandomSketch, Rows, sketch_rows, sketch_stream

_NUMBERS = 1 << 18  # of A in one block: 2 MB in float64; part of the operator's definition


@part("gaussian", "sketch", title="Gaussian sketches of {dim} numbers", cite="the paper, Algorithm CE-GME")
@dataclass(frozen=True)
class GaussianSketch(RandomSketch):
    """S = A u / √k with A (k, d) of independent N(0, 1) entries.

    E⟨Su, Sv⟩ = ⟨u, v⟩ with variance (‖u‖²‖v‖² + ⟨u, v⟩²) / k; for m rows, all inner products are within ε max‖u‖² of
    the true ones with probability 1 − δ once k ≥ 100 log(m / δ) / ε² (paper, Prop. 3). It costs k·d normal draws.

    >>> GaussianSketch(dim=5, seed=0)(np.ones((3, 1000))).shape
    (3, 5)
    """

    def __call__(self, G: Rows) -> Rows:
        """The sketches (m, k) of the rows (m, d)."""
        return sketch_rows(G, self.dim, self._width, self._block)

    def streamed(self, pieces: Iterable[Rows]) -> Rows:
        """The same of rows that come as pieces of their columns, (m, c₁), (m, c₂), …, such as layer by layer."""
        return sketch_stream(pieces, self.dim, self._width, self._block)

    @property
    def _width(self) -> int:
        return max(1, _NUMBERS // self.dim)

    def _block(self, b: int, c: int) -> BlockMap:
        """u ↦ A_b u / √k, with A_b (k, c) the columns of A in block b."""
        A = numpy_generator(self.seed, "gaussian", b).standard_normal((self.dim, c))

        def product(u: FloatArray) -> FloatArray:
            s: FloatArray = np.einsum("kc,c->k", A, u)  # not A @ u: see base.py
            return s / math.sqrt(self.dim)

        return product
