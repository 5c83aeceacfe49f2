"""Rows in fewer bytes: bfloat16, or int8 with one scale per 256 numbers.

Rows that are rounded for the message, q = Q(x), say in which direction a gossip step moves, not where it ends:

    x_j ← x_j + Σ_i (w_ij − δ_ij) q_i

A node takes its own row rounded in the sum, so what rounding cuts off, x − q, stays where it is. The sum of all rows is
conserved as in exact gossip, because the rows of W − I sum to 0. No residuals have to be kept: feeding them back into
the next message, q = Q(x + e), gained nothing in bfloat16 and int8 (docs/studies/mixing-policies.md).

Legend: rows (r, d); their form on the wire (r, width).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.functional import pad

from mixwise.errors import NetworkError

_BLOCK = 256  # numbers that share a scale
_LEVELS = 127  # on each side of 0
_AT_ONCE = 1 << 18  # numbers that are rounded at a time
_SHORT = 64  # numbers; shorter rows travel as they are: it saves nothing, and they may be weights of push-sum

WIRE_DTYPES = {"bfloat16": torch.bfloat16, "int8": torch.int8}


def as_wire_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Return the precision of rows on the wire, given by its name or its dtype; None sends them as they are."""
    if dtype is None or dtype in WIRE_DTYPES.values():
        return dtype  # type: ignore[return-value]  # not a string
    if dtype in WIRE_DTYPES:
        return WIRE_DTYPES[str(dtype)]
    raise NetworkError(f"wire_dtype = {dtype}; rows travel as they are (None), in bfloat16 or in int8")


class Wire:
    """The form of rows of length d on the wire.

    Args:
        dtype: torch.bfloat16 or torch.int8.
        d: numbers per row.

    Attributes:
        dtype, width: of a row on the wire: bfloat16 as it is; int8 as bytes, first the scales, then the levels.
    """

    def __init__(self, dtype: torch.dtype, d: int) -> None:
        self.d, self.casts = d, dtype == torch.bfloat16
        self._scales = 4 * -(-d // _BLOCK)  # bytes
        self.dtype = dtype if self.casts else torch.uint8
        self.width = d if self.casts else self._scales + 4 * -(-d // 4)  # every row starts at a multiple of 4

    @classmethod
    def of(cls, rows: torch.Tensor, dtype: torch.dtype | None) -> Wire | None:
        """Return the form in which these rows travel, or None if they travel as they are."""
        d = rows.shape[1]
        return None if dtype is None or d <= _SHORT or rows.dtype == dtype else cls(dtype, d)

    def pack(self, rows: torch.Tensor, packed: torch.Tensor | None = None) -> torch.Tensor:
        """Return the rows as they travel, in a new tensor or in `packed`."""
        if packed is None:
            packed = torch.empty(len(rows), self.width, dtype=self.dtype, device=rows.device)
        if self.casts:
            return packed.copy_(rows)
        for columns, scales, levels in self._pieces(packed):
            blocks = pad(rows[:, columns], (0, -levels.shape[1] % _BLOCK)).view(len(rows), -1, _BLOCK)
            scale = (blocks.abs().amax(dim=2) / _LEVELS).float()
            scale[scale < torch.finfo(torch.float32).tiny] = 1.0
            scales.copy_(scale.view(torch.uint8))
            levels.copy_((blocks / scale[:, :, None]).round_().view(len(rows), -1)[:, : levels.shape[1]])
        return packed

    def unpack(self, packed: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Write what packed rows say into `rows`."""
        if self.casts:
            return rows.copy_(packed)
        for columns, scales, levels in self._pieces(packed):
            blocks = pad(levels, (0, -levels.shape[1] % _BLOCK)).view(len(rows), -1, _BLOCK)
            scale = scales.contiguous().view(torch.float32)
            rows[:, columns] = (blocks * scale[:, :, None]).view(len(rows), -1)[:, : levels.shape[1]]
        return rows

    def _pieces(self, packed: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Some columns of int8 rows at a time, which stay in the cache: the slice, their scales and their levels."""
        width = _BLOCK * max(1, _AT_ONCE // (_BLOCK * max(1, len(packed))))
        for start in range(0, self.d if len(packed) else 0, width):  # without rows there are no shapes to infer
            stop = min(start + width, self.d)
            scales = packed[:, start // _BLOCK * 4 : -(-stop // _BLOCK) * 4]
            yield slice(start, stop), scales, packed[:, self._scales + start : self._scales + stop].view(torch.int8)

    def rounded(self, rows: torch.Tensor) -> torch.Tensor:
        """Q(rows): what the receivers see, in a new tensor."""
        return self.unpack(self.pack(rows), torch.empty_like(rows, memory_format=torch.contiguous_format))
