"""The count sketch: one ±1 per coordinate instead of k normal draws (docs/decisions/0002)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from mixwise.parts import part
from mixwise.seeding import numpy_generator
from mixwise.sketch.base import (
    Array,
    BlockMap,
    FloatArray,
    RandomSketch,
    Rows,
    sketch_rows,
    sketch_stream,
    sketch_sums,
)

_BLOCK = 1 << 16  # coordinates drawn at a time: 0.5 MB of indices; part of the operator's definition


@part("count", "sketch", title="count sketches of {dim} numbers", cite="Charikar, Chen and Farach-Colton 2002")
@dataclass(frozen=True)
class CountSketch(RandomSketch):
    """S = C u with one ±1 in every column of C (k, d): coordinate j is added to, or subtracted from, one of k sums.

    Row and sign come from one draw r_j, uniform on 0 … 2k − 1:  T[r] = Σ_{j: r_j = r} u_j  and  S = T[:k] − T[k:].

    E⟨Su, Sv⟩ = ⟨u, v⟩ with variance (‖u‖²‖v‖² + ⟨u, v⟩² − 2 Σ_j u_j² v_j²) / k, never above the Gaussian sketch's.
    It costs d draws and d additions, whatever k is.

    Reference: Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", 2002.

    >>> abs(CountSketch(dim=5, seed=0)(np.eye(3))).sum(axis=1)
    array([1., 1., 1.])
    """

    def __call__(self, G: Rows) -> Rows:
        """The sketches (m, k) of the rows (m, d)."""
        return sketch_rows(G, self.dim, _BLOCK, self._block)

    def streamed(self, pieces: Iterable[Rows]) -> Rows:
        """The same of rows that come as pieces of their columns, (m, c₁), (m, c₂), …, such as layer by layer.

        >>> G = np.arange(12.0).reshape(2, 6)
        >>> bool((CountSketch(3).streamed([G[:, :4], G[:, 4:]]) == CountSketch(3)(G)).all())
        True
        """
        return sketch_stream(pieces, self.dim, _BLOCK, self._block)

    def sums(self, G: Array | torch.Tensor) -> FloatArray:
        """The same in float64, before they are rounded: sums(X) − sums(X′) is sums(X − X′), without that tensor."""
        return sketch_sums(G, self.dim, _BLOCK, self._block)

    def _block(self, b: int, c: int) -> BlockMap:
        """u ↦ T[:k] − T[k:] for the c coordinates in block b."""
        k = self.dim
        short = np.uint16 if 2 * k <= 1 << 16 else np.uint32  # short draws are the faster ones
        signed_bucket = numpy_generator(self.seed, "count", b).integers(2 * k, size=c, dtype=short).astype(np.intp)

        def signed_sums(u: FloatArray) -> FloatArray:
            T: FloatArray = np.bincount(signed_bucket, weights=u, minlength=2 * k).astype(np.float64, copy=False)
            return T[:k] - T[k:]

        return signed_sums
