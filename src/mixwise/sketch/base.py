"""What every sketch is, and how a random one is applied: row by row, block of coordinates by block of coordinates.

Legend: G (m, d) rows, or pieces (m, c₁), (m, c₂), … of them; S (m, k) their sketches; u (c,) one row's numbers in one
block of c coordinates.

A row's sketch is the same to the last bit whichever rows come with it, wherever it lies in memory and however many
threads there are. So each row is copied into the same buffer, and only serial NumPy kernels touch it; a BLAS product
would be faster, but its last bits change with the number of threads and with the rows beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import SketchError
from mixwise.parts import Count, family
from mixwise.seeding import stream

Array: TypeAlias = npt.NDArray[Any]
FloatArray: TypeAlias = npt.NDArray[np.float64]
Rows = TypeVar("Rows", Array, torch.Tensor)  # what comes in as NumPy goes out as NumPy, torch as torch

BlockMap: TypeAlias = Callable[[FloatArray], FloatArray]  # u (c,) -> its share of the sketch (k,)


@family("sketch")
class Sketch(Protocol):
    """A linear map u ↦ Su with E⟨Su, Sv⟩ = ⟨u, v⟩, the same for all rows; a value that can be compared and sent."""

    @property
    def dim(self) -> int | None:
        """k, the length of a sketch; None if it is the length of the row."""

    def width(self, d: int) -> int:
        """How many numbers the sketch of a row of length d has."""

    def fresh(self, t: int) -> Sketch:
        """The sketch of mixing t: same kind and size, independent draws."""

    def __call__(self, G: Rows) -> Rows:
        """S (m, k), on the device of G and in its dtype; float32 if that is a shorter one."""

    def streamed(self, pieces: Iterable[Rows]) -> Rows:
        """The same S, to the last bit, of rows that come as pieces of their columns, (m, c₁), (m, c₂), …, in order."""


@dataclass(frozen=True)
class RandomSketch:
    """What the drawn sketches share: a length k, and a seed that names the operator."""

    dim: Count = 100
    seed: int = 0

    def width(self, d: int) -> int:
        """k, whatever d is."""
        return self.dim

    def fresh(self, t: int) -> Self:
        """The sketch of mixing t: same kind and size, independent draws."""
        return replace(self, seed=stream(self.seed, "sketch", t))


def sketch_rows(G: Rows, dim: int, block: int, block_map: Callable[[int, int], BlockMap]) -> Rows:
    """The sketches of `sketch_sums`, rounded once to the dtype of S."""
    return _rounded(sketch_sums(G, dim, block, block_map), G)


def sketch_stream(pieces: Iterable[Rows], dim: int, block: int, block_map: Callable[[int, int], BlockMap]) -> Rows:
    """The same of rows that come in pieces; nothing is kept of a piece but the columns of a block that it began."""
    sums = RowSums(dim, block, block_map)
    kind: Rows | None = None
    for number, piece in enumerate(pieces):
        check_piece(piece, kind, number)
        if kind is None:  # no columns: it tells type, rows, dtype and device
            kind = piece[:, :0].clone() if isinstance(piece, torch.Tensor) else piece[:, :0].copy()
        sums.add(piece)
    if kind is None:
        raise SketchError("no piece of any row came; a sketch takes rows of length 1 or more")
    return _rounded(sums.finished(), kind)


def sketch_sums(G: Array | torch.Tensor, dim: int, block: int, block_map: Callable[[int, int], BlockMap]) -> FloatArray:
    """The sums of rows that come as one piece."""
    check_rows(G)
    sums = RowSums(dim, block, block_map)
    sums.add(G, last=True)
    return sums.finished()


class RowSums:
    """S[i] = Σ_b M_b u_ib, in float64 and in the order of the blocks b, of rows that may come in pieces.

    A block is multiplied when all of its columns are there, so that it does not matter where the pieces are cut.

    Args:
        dim: k.
        block: how many coordinates a block has; the last one of a row may have fewer.
        block_map: (b, c) -> M_b, the map of the c coordinates in block b; drawn once, used for all rows, dropped.

    On a GPU too, this runs on the CPU: that is where the operator is drawn, and it is larger than a row.
    """

    def __init__(self, dim: int, block: int, block_map: Callable[[int, int], BlockMap]) -> None:
        self.dim, self.block, self.block_map = dim, block, block_map
        self._S: FloatArray | None = None
        self._b = 0  # the block that is next
        self._begun: Array | None = None  # (m, block), the columns of it that are there
        self._filled = 0

    def add(self, G: Array | torch.Tensor, *, last: bool = False) -> None:
        """The next columns of all rows; of the last ones nothing has to be kept."""
        m, d = G.shape
        if self._S is None:
            self._S = np.zeros((m, self.dim))
        start = 0
        if self._filled > 0:
            start = self._keep(G[:, : self.block - self._filled])
            if self._filled < self.block:
                return
            self._multiply_begun()
        while start < d and (last or d - start >= self.block):
            self._multiply(G[:, start : start + self.block])
            start += self.block
        if start < d:
            self._keep(G[:, start:])

    def finished(self) -> FloatArray:
        """S (m, k), when all columns have come."""
        if self._filled > 0:
            self._multiply_begun()
        if self._S is None or self._b == 0:
            raise SketchError("rows without coordinates have no sketch; pass rows of length 1 or more")
        return self._S

    def _keep(self, G: Array | torch.Tensor) -> int:
        """Copy some columns of the block that is next; how many."""
        m, c = G.shape
        if self._begun is None:
            short = sketch_dtype(G) in (torch.float32, np.float32)
            self._begun = np.empty((m, self.block), dtype=np.float32 if short else np.float64)
        for i in range(m):
            self._begun[i, self._filled : self._filled + c] = _on_host(G[i])
        self._filled += c
        return c

    def _multiply_begun(self) -> None:
        assert self._begun is not None
        self._multiply(self._begun[:, : self._filled])
        self._filled = 0

    def _multiply(self, G: Array | torch.Tensor) -> None:
        """Add the shares of one block, G (m, c)."""
        assert self._S is not None
        u = np.empty(G.shape[1])
        M = self.block_map(self._b, len(u))
        for i in range(len(G)):
            u[:] = _on_host(G[i])
            self._S[i] += M(u)
        self._b += 1


def as_sketch(S: FloatArray, G: torch.Tensor) -> torch.Tensor:
    """Sums as the sketches of G: on its device, in its precision."""
    return torch.from_numpy(S).to(sketch_dtype(G)).to(G.device)  # in this order: not every device has float64


def _rounded(S: FloatArray, G: Rows) -> Rows:
    return as_sketch(S, G) if isinstance(G, torch.Tensor) else S.astype(sketch_dtype(G), copy=False)


def check_piece(piece: Array | torch.Tensor, first: Array | torch.Tensor | None, number: int) -> None:
    """Refuse a piece that cannot belong to the same rows as the first one."""
    check_rows(piece, empty=True)
    if first is None:
        return
    same = isinstance(piece, torch.Tensor) == isinstance(first, torch.Tensor) and piece.dtype == first.dtype
    if not same or len(piece) != len(first):
        raise SketchError(
            f"piece {number} has {len(piece)} rows of {piece.dtype}, the first one {len(first)} of {first.dtype}; "
            f"all pieces are columns of the same rows"
        )


def check_rows(G: object, *, empty: bool = False) -> None:
    """Refuse what has no sketch; a piece of rows may be `empty`."""
    if not isinstance(G, np.ndarray | torch.Tensor):
        raise SketchError(f"rows of type {type(G).__name__}; a sketch takes a NumPy array or a torch tensor (m, d)")
    shape = tuple(G.shape)
    if len(shape) != 2:
        raise SketchError(f"rows of shape {shape}; a sketch takes one row per node, (m, d): pass u[None] for a vector")
    if shape[1] == 0 and not empty:
        raise SketchError(f"rows of shape {shape} have no coordinates to sketch; pass rows of length 1 or more")
    real = G.is_floating_point() if isinstance(G, torch.Tensor) else G.dtype.kind == "f"
    if not real:
        raise SketchError(f"rows of dtype {G.dtype}; a sketch takes real floating-point rows: convert them first")


def sketch_dtype(G: Array | torch.Tensor) -> Any:
    """float64 for rows in float64 (or longer), float32 for all shorter ones."""
    if isinstance(G, torch.Tensor):
        return torch.float64 if G.dtype == torch.float64 else torch.float32
    return np.float64 if G.dtype.itemsize >= 8 else np.float32


def _on_host(u: Array | torch.Tensor) -> Array:
    if not isinstance(u, torch.Tensor):
        return u
    u = u.detach().cpu()
    return (u if u.dtype == torch.float64 else u.float()).numpy()  # NumPy does not know bfloat16
