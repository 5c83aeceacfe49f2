"""Rows that travel in fewer bytes than they take here."""

from __future__ import annotations

from typing import Protocol

import torch


class Packing(Protocol):
    """How the owned rows of one mixing look on the wire. A row that was packed and unpacked has the same bits again.

    Attributes:
        dtype, width: of a packed row.
    """

    dtype: torch.dtype
    width: int

    def pack(self, position: int, packed: torch.Tensor) -> None:
        """Write the owned row at this position to `packed` (width,)."""
        ...

    def unpack(self, packed: torch.Tensor, row: torch.Tensor) -> None:
        """Write what somebody has packed to `row` (d,)."""
        ...


def message_bytes(rows: torch.Tensor, packing: Packing | None) -> int:
    """Bytes of one row on the wire."""
    return rows.shape[1] * rows.element_size() if packing is None else packing.width * packing.dtype.itemsize


LONG_ROW = 1 << 16  # bytes; shorter rows are cheaper to copy, or to send whole, than to send in several messages


def average_bytes(n: int, size: int) -> int:
    """Bytes that n nodes send for the mean of their rows of `size` bytes: in parts, or short rows to everybody."""
    return (2 if size >= LONG_ROW else n) * (n - 1) * size


class Cast:
    """Rows of numbers that a shorter dtype can hold."""

    def __init__(self, rows: torch.Tensor, dtype: torch.dtype) -> None:
        self.rows, self.dtype, self.width = rows, dtype, rows.shape[1]

    def pack(self, position: int, packed: torch.Tensor) -> None:
        """Cast it."""
        packed.copy_(self.rows[position])

    def unpack(self, packed: torch.Tensor, row: torch.Tensor) -> None:
        """Cast it back."""
        row.copy_(packed)
