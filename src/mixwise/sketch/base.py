"""The sketch protocol, the checks of rows, and the exact sketch, which is the row itself.

Legend: G (m, d) rows, or pieces (m, c₁), (m, c₂), … of their columns; S (m, k) their sketches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import SketchError
from mixwise.parts import family, part

Array: TypeAlias = npt.NDArray[Any]
FloatArray: TypeAlias = npt.NDArray[np.float64]
Rows = TypeVar("Rows", Array, torch.Tensor)  # NumPy rows have NumPy sketches, torch rows torch sketches


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


def as_sketch(S: FloatArray, G: Rows) -> Rows:
    """Sums as sketches of G: in its precision, on its device."""
    rounded = S.astype(sketch_dtype(G), copy=False)  # before it is moved: some devices have no float64
    return torch.from_numpy(rounded).to(G.device) if isinstance(G, torch.Tensor) else rounded


def sketch_dtype(G: Array | torch.Tensor) -> type[np.floating[Any]]:
    """float64 for rows in float64 (or longer), float32 for all shorter ones."""
    return np.float64 if G.itemsize >= 8 else np.float32


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
