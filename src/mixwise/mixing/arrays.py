"""Numbers that callers pass in: arrays and tensors, checked, as NumPy arrays in float64.

Legend: G (n, d) one row per node, NumPy or torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import MixingError, NotFiniteError, kind_of

Rows: TypeAlias = npt.NDArray[Any] | torch.Tensor

_BLOCK = 1 << 18  # numbers in one block of columns: 2 MB in float64
_NARROWEST = 64  # columns of a block: with fewer, most of what is read from memory would not be used


def as_float64(values: npt.ArrayLike | torch.Tensor, what: str = "the argument") -> npt.NDArray[np.float64]:
    """Return real numbers as a NumPy array in float64, not a copy if they are one; `what` names them in an error."""
    if isinstance(values, torch.Tensor) and not values.is_complex():
        values = values.detach().to(device="cpu", dtype=torch.float64).numpy()  # NumPy has no bfloat16
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "fiub":
        is_array = isinstance(values, np.ndarray | torch.Tensor)
        found = f"an array of {array.dtype}" if is_array else kind_of(values)
        raise MixingError(f"{what} is {found}; pass an array or a tensor of real numbers")
    return array.astype(np.float64, copy=False)


def as_rows(G: Rows) -> Rows:
    """Return G (n, d), one row of real numbers per node, as it is; raise `MixingError` for anything else."""
    rows = G if isinstance(G, torch.Tensor) else np.asarray(G) if isinstance(G, np.ndarray) else as_float64(G, "G")
    if rows.ndim != 2 or not len(rows):
        raise MixingError(f"expected one row per node, an array of shape (n, d); got shape {tuple(rows.shape)}")
    return rows


def column_blocks(G: Rows) -> Iterator[npt.NDArray[np.float64]]:
    """Return blocks of the columns of G in float64."""
    rows = as_rows(G)
    width = max(_NARROWEST, _BLOCK // len(rows))
    for start in range(0, rows.shape[1], width):
        yield as_float64(rows[:, start : start + width], "G")


def check_finite(result: npt.ArrayLike, G: Rows) -> None:
    """Raise `NotFiniteError` if a result is not finite, with the first row of G that is the cause."""
    if np.isfinite(result).all():
        return
    for i, row in enumerate(as_rows(G)):
        bad = np.flatnonzero(~np.isfinite(as_float64(row)))
        if len(bad):
            value = f"G[{i}, {bad[0]}] = {float(row[bad[0]])}"
            where = f"look for NaN in the gradient or the update of node {i}"
            raise NotFiniteError(f"{value}; rows are finite: {where}", node=i)
    longest = max(range(len(G)), key=lambda i: float(np.abs(as_float64(G[i])).max(initial=0.0)))
    what = f"the squares of the rows are too large for float64, above all those of node {longest}"
    raise NotFiniteError(f"{what}; scale the rows down", node=longest)
