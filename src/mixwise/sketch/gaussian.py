"""The paper's sketch: a Gaussian matrix, drawn block by block and never stored (paper, Alg. CE-GME)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mixwise.parts import part
from mixwise.seeding import numpy_generator
from mixwise.sketch.base import BlockMap, FloatArray, RandomSketch

_NUMBERS = 1 << 18  # of A in one block: 2 MB in float64; part of the operator's definition


@part("gaussian", "sketch", title="Gaussian sketches of {dim} numbers", cite="the paper, Algorithm CE-GME")
@dataclass(frozen=True)
class GaussianSketch(RandomSketch):
    """S = A u / √k with A (k, d) of independent N(0, 1) entries.

    E⟨Su, Sv⟩ = ⟨u, v⟩ with variance (‖u‖²‖v‖² + ⟨u, v⟩²) / k; for m rows, all inner products are within ε max‖u‖² of
    the true ones with probability 1 − δ once k ≥ 100 log(m / δ) / ε² (paper, Prop. 3). It costs k·d normal draws.

    Args:
        dim: k, the length of a sketch.
        seed: of the operator.

    >>> GaussianSketch(dim=5, seed=0)(np.ones((3, 1000))).shape
    (3, 5)
    """

    @property
    def _block_length(self) -> int:
        return max(1, _NUMBERS // self.dim)

    def _block_map(self, b: int, c: int) -> BlockMap:
        A = numpy_generator(self.seed, "gaussian", b).standard_normal((self.dim, c))

        def product(u: FloatArray) -> FloatArray:
            s: FloatArray = np.einsum("kc,c->k", A, u)  # not A @ u: see base.py
            return s / math.sqrt(self.dim)

        return product
