"""The count sketch: one ±1 per coordinate instead of k normal draws (docs/decisions/0002)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mixwise.parts import part
from mixwise.seeding import numpy_generator
from mixwise.sketch.base import BlockMap, FloatArray, RandomSketch

_BLOCK = 1 << 16  # coordinates drawn at a time: 0.5 MB of indices; part of the operator's definition


@part("count", "sketch", title="count sketches of {dim} numbers", cite="Charikar, Chen and Farach-Colton 2002")
@dataclass(frozen=True)
class CountSketch(RandomSketch):
    """S = C u with one ±1 in every column of C (k, d): each coordinate is added to, or subtracted from, one of k sums.

    Sum and sign come from one draw r_j, uniform on 0 … 2k − 1:  T[r] = Σ_{j: r_j = r} u_j  and  S = T[:k] − T[k:].

    E⟨Su, Sv⟩ = ⟨u, v⟩ with variance (‖u‖²‖v‖² + ⟨u, v⟩² − 2 Σ_j u_j² v_j²) / k, never above that of the Gaussian
    sketch. It costs d draws and d additions, for any k.

    Args:
        dim: k, the length of a sketch.
        seed: of the operator.

    Reference: Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", 2002.

    >>> abs(CountSketch(dim=5, seed=0)(np.eye(3))).sum(axis=1)
    array([1., 1., 1.])
    >>> G = np.arange(12.0).reshape(2, 6)
    >>> bool((CountSketch(3).streamed([G[:, :4], G[:, 4:]]) == CountSketch(3)(G)).all())
    True
    """

    @property
    def _block_length(self) -> int:
        return _BLOCK

    def _block_map(self, b: int, c: int) -> BlockMap:
        k = self.dim
        short = np.uint16 if 2 * k <= 1 << 16 else np.uint32  # short draws are faster
        signed_bucket = numpy_generator(self.seed, "count", b).integers(2 * k, size=c, dtype=short).astype(np.intp)

        def signed_sums(u: FloatArray) -> FloatArray:
            T: FloatArray = np.bincount(signed_bucket, weights=u, minlength=2 * k).astype(np.float64, copy=False)
            return T[:k] - T[k:]

        return signed_sums
