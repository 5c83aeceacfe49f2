"""What every sketch is, and how a random one is applied: row by row, block of coordinates by block of coordinates.

Legend: G (m, d) rows; S (m, k) their sketches; u (c,) one row's numbers in one block of c coordinates.

A row's sketch is the same to the last bit whichever rows come with it, wherever it lies in memory and however many
threads there are. So each row is copied into the same buffer, and only serial NumPy kernels touch it; a BLAS product
would be faster, but its last bits change with the number of threads and with the rows beside it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import SketchError
from mixwise.seeding import stream

Array: TypeAlias = npt.NDArray[Any]
FloatArray: TypeAlias = npt.NDArray[np.float64]
Rows = TypeVar("Rows", Array, torch.Tensor)  # what comes in as NumPy goes out as NumPy, torch as torch

BlockMap: TypeAlias = Callable[[FloatArray], FloatArray]  # u (c,) -> its share of the sketch (k,)


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


@dataclass(frozen=True)
class RandomSketch:
    """What the drawn sketches share: a length k, and a seed that names the operator."""

    dim: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", checked_integer("dim", self.dim, least=1))
        object.__setattr__(self, "seed", checked_integer("seed", self.seed))

    def width(self, d: int) -> int:
        """k, whatever d is."""
        return self.dim

    def fresh(self, t: int) -> Self:
        """The sketch of mixing t: same kind and size, independent draws."""
        return replace(self, seed=stream(self.seed, "sketch", t))


def sketch_rows(G: Rows, dim: int, block: int, block_map: Callable[[int, int], BlockMap]) -> Rows:
    """The sketches of `sketch_sums`, rounded once to the dtype of S."""
    S = sketch_sums(G, dim, block, block_map)
    return as_sketch(S, G) if isinstance(G, torch.Tensor) else S.astype(sketch_dtype(G), copy=False)


def as_sketch(S: FloatArray, G: torch.Tensor) -> torch.Tensor:
    """Sums as the sketches of G: on its device, in its precision."""
    return torch.from_numpy(S).to(sketch_dtype(G)).to(G.device)  # in this order: not every device has float64


def sketch_sums(G: Array | torch.Tensor, dim: int, block: int, block_map: Callable[[int, int], BlockMap]) -> FloatArray:
    """S[i] = Σ_b M_b u_ib, in float64 and in the order of the blocks b.

    Args:
        G: rows (m, d).
        dim: k.
        block: how many coordinates a block has; the last one of a row may have fewer.
        block_map: (b, c) -> M_b, the map of the c coordinates in block b; drawn once, used for all rows, dropped.

    On a GPU too, this runs on the CPU: that is where the operator is drawn, and it is larger than a row.
    """
    check_rows(G)
    m, d = G.shape
    S = np.zeros((m, dim))
    buffer = np.empty(min(block, d))
    for b, start in enumerate(range(0, d, block)):
        u = buffer[: d - start]
        M = block_map(b, len(u))
        for i in range(m):
            u[:] = _on_host(G[i, start : start + block])
            S[i] += M(u)
    return S


def check_rows(G: object) -> None:
    """Refuse what has no sketch."""
    if not isinstance(G, np.ndarray | torch.Tensor):
        raise SketchError(f"rows of type {type(G).__name__}; a sketch takes a NumPy array or a torch tensor (m, d)")
    shape = tuple(G.shape)
    if len(shape) != 2:
        raise SketchError(f"rows of shape {shape}; a sketch takes one row per node, (m, d): pass u[None] for a vector")
    if shape[1] == 0:
        raise SketchError(f"rows of shape {shape} have no coordinates to sketch; pass rows of length 1 or more")
    real = G.is_floating_point() if isinstance(G, torch.Tensor) else G.dtype.kind == "f"
    if not real:
        raise SketchError(f"rows of dtype {G.dtype}; a sketch takes real floating-point rows: convert them first")


def sketch_dtype(G: Array | torch.Tensor) -> Any:
    """float64 for rows in float64 (or longer), float32 for all shorter ones."""
    if isinstance(G, torch.Tensor):
        return torch.float64 if G.dtype == torch.float64 else torch.float32
    return np.float64 if G.dtype.itemsize >= 8 else np.float32


def checked_integer(name: str, value: object, least: int | None = None) -> int:
    """`value` as an int, if it is one and not below `least`."""
    rule = "an integer" if least is None else f"an integer, {least} or larger"
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # the question is whether it is one
    except TypeError:
        raise SketchError(f"{name} = {value!r}; it must be {rule}") from None
    if isinstance(value, bool) or (least is not None and number < least):
        raise SketchError(f"{name} = {value!r}; it must be {rule}")
    return number


def _on_host(u: Array | torch.Tensor) -> Array:
    if not isinstance(u, torch.Tensor):
        return u
    u = u.detach().cpu()
    return (u if u.dtype == torch.float64 else u.float()).numpy()  # NumPy does not know bfloat16
