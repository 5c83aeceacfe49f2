"""The sketch protocol, and how a random sketch is applied: row by row, one block of coordinates after the other.

Legend: G (m, d) rows, or pieces (m, c₁), (m, c₂), … of their columns; S (m, k) their sketches; u (c,) the numbers of
one row in one block of c coordinates.

A row's sketch is the same to the last bit for any rows beside it, any memory layout and any number of threads. So each
row is copied into the same buffer, and only serial NumPy kernels touch it; a BLAS product would be faster, but its last
bits change with the number of threads and with the rows beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import SketchError
from mixwise.parts import Count, family
from mixwise.seeding import stream

Array: TypeAlias = npt.NDArray[Any]
FloatArray: TypeAlias = npt.NDArray[np.float64]
Rows = TypeVar("Rows", Array, torch.Tensor)  # NumPy rows have NumPy sketches, torch rows torch sketches

BlockMap: TypeAlias = Callable[[FloatArray], FloatArray]  # u (c,) -> its contribution to the sketch (k,)


@family("sketch")
class Sketch(Protocol):
    """A linear map u ↦ Su with E⟨Su, Sv⟩ = ⟨u, v⟩, the same for all rows; an immutable, hashable value."""

    @property
    def dim(self) -> int | None:
        """k, the length of a sketch; None if it is the length of the row."""

    def width(self, d: int) -> int:
        """The length of the sketch of a row of length d."""

    def fresh(self, t: int) -> Sketch:
        """The sketch of mixing t: same kind and size, independent draws."""

    def __call__(self, G: Rows) -> Rows:
        """The sketches (m, k) of the rows G (m, d), on their device and in their dtype, but at least in float32."""

    def streamed(self, pieces: Iterable[Rows]) -> Rows:
        """The same sketches, bit for bit, of rows that arrive as pieces of their columns, in order."""


@dataclass(frozen=True)
class RandomSketch(ABC):
    """A sketch with random draws: S[i] = Σ_b M_b u_ib over the blocks b of coordinates, in order and in float64.

    Args:
        dim: k, the length of a sketch.
        seed: of the operator.

    The maps M_b are drawn on the CPU, one at a time, and never stored; rows on a GPU are copied, block by block.
    """

    dim: Count = 100
    seed: int = 0

    @property
    @abstractmethod
    def _block_length(self) -> int:
        """The number of coordinates in a block; the last block of a row may have fewer."""

    @abstractmethod
    def _block_map(self, b: int, c: int) -> BlockMap:
        """M_b, the map of the c coordinates in block b."""

    def width(self, d: int) -> int:
        """k, for any d."""
        return self.dim

    def fresh(self, t: int) -> Self:
        """The sketch of mixing t: same kind and size, independent draws."""
        return replace(self, seed=stream(self.seed, "sketch", t))

    def __call__(self, G: Rows) -> Rows:
        """The sketches (m, k) of the rows G (m, d)."""
        return _rounded(self.sums(G), G)

    def streamed(self, pieces: Iterable[Rows]) -> Rows:
        """The same sketches of rows that arrive as pieces of their columns, (m, c₁), (m, c₂), …, such as layers."""
        like, pieces = checked_pieces(pieces)
        return _rounded(self._sum_over(_in_blocks(pieces, self._block_length)), like)

    def sums(self, G: Array | torch.Tensor) -> FloatArray:
        """The sketches in float64, before rounding: sums(X) − sums(X′) is sums(X − X′), without that tensor."""
        check_rows(G)
        c = self._block_length
        return self._sum_over(G[:, start : start + c] for start in range(0, G.shape[1], c))

    def _sum_over(self, blocks: Iterable[Array | torch.Tensor]) -> FloatArray:
        S: FloatArray | None = None
        for b, G in enumerate(blocks):
            S = np.zeros((len(G), self.dim)) if S is None else S
            u = np.empty(G.shape[1])
            M = self._block_map(b, len(u))
            for i in range(len(G)):
                u[:] = _on_host(G[i])
                S[i] += M(u)
        if S is None:
            raise SketchError("rows without coordinates have no sketch; pass rows of length 1 or more")
        return S


def as_sketch(S: FloatArray, G: torch.Tensor) -> torch.Tensor:
    """Sums as sketches of G: on its device, in its precision."""
    return torch.from_numpy(S).to(sketch_dtype(G)).to(G.device)  # in this order: some devices have no float64


def sketch_dtype(G: Array | torch.Tensor) -> Any:
    """float64 for rows in float64 (or longer), float32 for all shorter ones."""
    if isinstance(G, torch.Tensor):
        return torch.float64 if G.dtype == torch.float64 else torch.float32
    return np.float64 if G.dtype.itemsize >= 8 else np.float32


def checked_pieces(pieces: Iterable[Rows]) -> tuple[Rows, Iterator[Rows]]:
    """A copy of the first piece without its columns, which has its type, dtype and device, and the pieces, checked."""
    remaining = iter(pieces)
    first = next(remaining, None)
    if first is None:
        raise SketchError("no pieces of rows were given; a sketch needs rows of length 1 or more")
    check_rows(first, empty=True)
    like = first[:, :0].clone() if isinstance(first, torch.Tensor) else first[:, :0].copy()

    def checked(all_pieces: Iterable[Rows]) -> Iterator[Rows]:
        for number, piece in enumerate(all_pieces):
            check_rows(piece, empty=True)
            same = isinstance(piece, torch.Tensor) == isinstance(like, torch.Tensor) and piece.dtype == like.dtype
            if not same or len(piece) != len(like):
                raise SketchError(
                    f"piece {number} has {len(piece)} rows of {piece.dtype}, the first {len(like)} of {like.dtype}; "
                    f"all pieces are columns of the same rows"
                )
            yield piece

    return like, checked(chain([first], remaining))


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


def _in_blocks(pieces: Iterable[Array | torch.Tensor], length: int) -> Iterator[Array | torch.Tensor]:
    """The columns of the pieces in blocks of `length`; only blocks that span pieces are copied."""
    begun, filled = np.empty((0, 0)), 0  # a block with its first columns filled
    for G in pieces:
        start = 0
        while start < G.shape[1]:
            c = min(length - filled, G.shape[1] - start)
            part = G[:, start : start + c]
            if c == length:
                yield part
            else:
                if not begun.size:
                    short = sketch_dtype(G) in (torch.float32, np.float32)
                    begun = np.empty((len(G), length), dtype=np.float32 if short else np.float64)
                for i in range(len(G)):
                    begun[i, filled : filled + c] = _on_host(part[i])
                filled += c
                if filled == length:
                    yield begun
                    filled = 0
            start += c
    if filled:
        yield begun[:, :filled]


def _rounded(S: FloatArray, G: Rows) -> Rows:
    return as_sketch(S, G) if isinstance(G, torch.Tensor) else S.astype(sketch_dtype(G), copy=False)


def _on_host(u: Array | torch.Tensor) -> Array:
    if not isinstance(u, torch.Tensor):
        return u
    u = u.detach().cpu()
    return (u if u.dtype == torch.float64 else u.float()).numpy()  # NumPy has no bfloat16
