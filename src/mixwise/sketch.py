"""Sketches: short rows that preserve the inner products of long ones, so that Γ costs k numbers per node, not d.

Random sketches are applied row by row, one block of coordinates after the other. A row's sketch is the same to the last
bit for any rows beside it, any memory layout and any number of threads. So only serial NumPy kernels touch it; a BLAS
product would be faster, but its last bits change with the number of threads and with the rows beside it.

Legend: G (m, d) rows, or pieces (m, c₁), (m, c₂), … of their columns; S (m, k) their sketches; U (r, c) some rows in
one block of c coordinates.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Annotated, Any, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Interval

from mixwise.errors import SketchError
from mixwise.parts import family, part
from mixwise.seeding import numpy_generator, stream

__all__ = ["CountSketch", "ExactSketch", "GaussianSketch", "Sketch"]

Array: TypeAlias = npt.NDArray[Any]
FloatArray: TypeAlias = npt.NDArray[np.float64]
Rows = TypeVar("Rows", Array, torch.Tensor)  # NumPy rows have NumPy sketches, torch rows torch sketches
BlockMap: TypeAlias = Callable[[FloatArray], FloatArray]  # U (r, c) -> its contribution to the sketches (r, k)

# Both are part of the definition of the operators.
_COORDINATES = 1 << 16  # that a count sketch draws at a time: 0.5 MB of indices
_NUMBERS = 1 << 18  # of the Gaussian matrix in one block: 2 MB in float64
_AT_ONCE = 1 << 16  # numbers of rows that are sketched together, which changes the speed but no bits


@family("sketch")
class Sketch(Protocol):
    """A linear map u ↦ Su with E⟨Su, Sv⟩ = ⟨u, v⟩, the same for all rows; an immutable, hashable value."""

    def fresh(self, t: int) -> Sketch:
        """The sketch of mixing t: same kind and size, independent draws."""

    def __call__(self, G: Rows) -> Rows:
        """The sketches (m, k) of the rows G (m, d), on their device and in their dtype, but at least in float32."""


@part("exact", "sketch", title="exact updates")
@dataclass(frozen=True)
class ExactSketch:
    """S = u: the rows themselves, not a copy, unless they are shorter than float32.

    >>> ExactSketch()(torch.tensor([[3.0, 4.0]]))
    tensor([[3., 4.]])
    """

    def fresh(self, t: int) -> ExactSketch:
        """The sketch itself, which has no random draws."""
        return self

    def __call__(self, G: Rows) -> Rows:
        """The rows G (m, d)."""
        check_rows(G)
        if isinstance(G, torch.Tensor):
            return G.detach() if G.itemsize >= 4 else G.detach().float()
        return G.astype(sketch_dtype(G), copy=False)


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
        remaining = iter(pieces)
        first = next(remaining, None)
        if first is None:
            raise SketchError("no pieces of rows were given; a sketch needs rows of length 1 or more")
        check_rows(first, empty=True)
        like = first[:, :0] + 0  # a copy: a view would keep the first piece in memory
        return as_sketch(self._sum_over(_in_blocks(chain([first], remaining), like, self._block_length)), like)

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


def _in_blocks(pieces: Iterable[Rows], like: Rows, length: int) -> Iterator[Array | torch.Tensor]:
    """The columns of pieces of rows `like` these, in blocks of `length`; only blocks that span pieces are copied."""
    begun: list[Array] = []  # parts of the block that is not complete yet
    filled = 0
    for number, G in enumerate(pieces):
        check_rows(G, empty=True)
        if G.dtype != like.dtype or len(G) != len(like):  # NumPy's dtypes differ from torch's
            raise SketchError(
                f"piece {number} has {len(G)} rows of {G.dtype}, the first {len(like)} of {like.dtype}; "
                f"all pieces are columns of the same rows"
            )
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


# --- rows ---
def as_sketch(S: FloatArray, G: Rows) -> Rows:
    """Sums as sketches of G: in its precision, on its device."""
    rounded = S.astype(sketch_dtype(G), copy=False)  # before it is moved: some devices have no float64
    return torch.from_numpy(rounded).to(G.device) if isinstance(G, torch.Tensor) else rounded


def sketch_dtype(G: Array | torch.Tensor) -> type[np.floating[Any]]:
    """float64 for rows in float64 (or longer), float32 for all shorter ones."""
    return np.float64 if G.itemsize >= 8 else np.float32


def check_rows(G: object, *, empty: bool = False) -> None:
    """Raise `SketchError` unless G are rows that can be sketched; with `empty`, a piece of no columns is allowed."""
    if not isinstance(G, np.ndarray | torch.Tensor):
        raise SketchError(f"rows of type {type(G).__name__}; a sketch takes a NumPy array or a torch tensor (m, d)")
    shape = tuple(G.shape)
    if len(shape) != 2:
        raise SketchError(f"rows of shape {shape}; a sketch takes one row per node, (m, d): pass u[None] for a vector")
    if shape[1] == 0 and not empty:
        raise SketchError(f"rows of shape {shape} have no coordinates to sketch; pass rows of length 1 or more")
    if not (G.is_floating_point() if isinstance(G, torch.Tensor) else G.dtype.kind == "f"):
        raise SketchError(f"rows of dtype {G.dtype}; a sketch takes real floating-point rows: convert them first")
