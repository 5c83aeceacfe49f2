"""Random sketches, applied row by row, one block of coordinates after the other.

Legend: G (m, d) rows, or pieces (m, c₁), (m, c₂), … of their columns; S (m, k) their sketches; U (r, c) some rows in
one block of c coordinates.

A row's sketch is the same to the last bit for any rows beside it, any memory layout and any number of threads. So only
serial NumPy kernels touch it; a BLAS product would be faster, but its last bits change with the number of threads and
with the rows beside it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Interval

from mixwise.errors import SketchError
from mixwise.parts import part
from mixwise.seeding import numpy_generator, stream
from mixwise.sketch.base import Array, FloatArray, Rows, as_sketch, check_rows, checked_pieces, sketch_dtype

BlockMap: TypeAlias = Callable[[FloatArray], FloatArray]  # U (r, c) -> its contribution to the sketches (r, k)

# Both are part of the definition of the operators.
_COORDINATES = 1 << 16  # that a count sketch draws at a time: 0.5 MB of indices
_NUMBERS = 1 << 18  # of the Gaussian matrix in one block: 2 MB in float64
_AT_ONCE = 1 << 16  # numbers of rows that are sketched together, which changes the speed but no bits


@dataclass(frozen=True)
class RandomSketch(ABC):
    """A sketch with random draws: S[i] = Σ_b M_b u_ib over the blocks b of coordinates, in order and in float64.

    Args:
        dim: k, the length of a sketch, at most 65,536.
        seed: of the operator.

    The maps M_b are drawn on the CPU, one at a time, and never stored; rows on a GPU are copied, block by block.
    """

    dim: Annotated[int, Interval(ge=1, le=1 << 16)] = 100
    seed: int = 0

    @property
    @abstractmethod
    def _block_length(self) -> int:
        """The number of coordinates in a block; the last block of a row may have fewer."""

    @abstractmethod
    def _block_map(self, b: int, c: int) -> BlockMap:
        """M_b, the map of the c coordinates in block b."""

    def fresh(self, t: int) -> Self:
        """The sketch of mixing t: same kind and size, independent draws."""
        fresh: Self = _fresh(self, t)
        return fresh

    def __call__(self, G: Rows) -> Rows:
        """The sketches (m, k) of the rows G (m, d)."""
        return as_sketch(self.sums(G), G)

    def streamed(self, pieces: Iterable[Rows]) -> Rows:
        """The same sketches of rows that arrive as pieces of their columns, (m, c₁), (m, c₂), …, such as layers."""
        like, pieces = checked_pieces(pieces)
        return as_sketch(self._sum_over(_in_blocks(pieces, self._block_length)), like)

    def sums(self, G: Array | torch.Tensor) -> FloatArray:
        """The sketches in float64, before rounding: sums(X) − sums(X′) is sums(X − X′), without that tensor."""
        check_rows(G)
        c = self._block_length
        return self._sum_over(G[:, start : start + c] for start in range(0, G.shape[1], c))

    def _sum_over(self, blocks: Iterable[Array | torch.Tensor]) -> FloatArray:
        S: FloatArray | None = None
        for b, G in enumerate(blocks):
            S = np.zeros((len(G), self.dim)) if S is None else S
            U = np.empty((max(1, min(len(G), _AT_ONCE // G.shape[1])), G.shape[1]))
            M = self._block_map(b, len(U[0]))
            for start in range(0, len(G), len(U)):
                some = slice(start, min(start + len(U), len(G)))
                u = U[: some.stop - start]
                u[:] = _on_host(G[some])
                S[some] += M(u)
        if S is None:
            raise SketchError("rows without coordinates have no sketch; pass rows of length 1 or more")
        return S


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
        return _COORDINATES

    def _block_map(self, b: int, c: int) -> BlockMap:
        k, signed_bucket = self.dim, _signed_buckets(self.seed, self.dim, b, c)

        def signed_sums(U: FloatArray) -> FloatArray:  # one number after the other, each row in its own buckets
            buckets = signed_bucket if len(U) == 1 else (signed_bucket + 2 * k * np.arange(len(U))[:, None]).ravel()
            T = np.bincount(buckets, weights=U.ravel(), minlength=2 * k * len(U)).reshape(len(U), 2 * k)
            return (T[:, :k] - T[:, k:]).astype(np.float64, copy=False)

        return signed_sums


@lru_cache(maxsize=1)  # X and X′ are sketched one after the other
def _signed_buckets(seed: int, k: int, b: int, c: int) -> npt.NDArray[np.intp]:
    """r_j of the coordinates in block b."""
    short = np.uint16 if 2 * k <= 1 << 16 else np.uint32  # short draws are faster
    return numpy_generator(seed, "count", b).integers(2 * k, size=c, dtype=short).astype(np.intp)


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

        u = np.empty(c)  # one place for all rows: what a kernel does may depend on the alignment

        def product(U: FloatArray) -> FloatArray:
            S = np.empty((len(U), self.dim))
            for row, s in zip(U, S, strict=True):
                u[:] = row
                s[:] = np.einsum("kc,c->k", A, u)  # not A @ u: see above
            return S / math.sqrt(self.dim)

        return product


@lru_cache(maxsize=8)  # a mixing asks for it twice, and validating the options takes most of the time
def _fresh(sketch: RandomSketch, t: int) -> Any:
    return replace(sketch, seed=stream(sketch.seed, "sketch", t))


def _in_blocks(pieces: Iterable[Array | torch.Tensor], length: int) -> Iterator[Array | torch.Tensor]:
    """The columns of the pieces in blocks of `length`; only blocks that span pieces are copied."""
    begun: list[Array] = []  # parts of the block that is not complete yet
    filled = 0
    for G in pieces:
        start = 0
        while start < G.shape[1]:
            c = min(length - filled, G.shape[1] - start)
            part = G[:, start : start + c]
            start += c
            if c == length:
                yield part
                continue
            begun.append(np.array(_on_host(part), dtype=sketch_dtype(G)))
            filled += c
            if filled == length:
                yield np.concatenate(begun, axis=1)
                begun, filled = [], 0
    if begun:
        yield np.concatenate(begun, axis=1)


def _on_host(u: Array | torch.Tensor) -> Array:
    if not isinstance(u, torch.Tensor):
        return u
    u = u.detach().cpu()
    return (u if u.dtype == torch.float64 else u.float()).numpy()  # NumPy has no bfloat16
