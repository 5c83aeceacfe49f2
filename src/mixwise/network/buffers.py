"""Memory for rows in transit, allocated once: fresh pages cost as much as sending what is written to them."""

from __future__ import annotations

import torch


class BufferPool:
    """Lends tensors and takes them back."""

    def __init__(self) -> None:
        self._free: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}

    def take(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A (rows, columns) tensor with arbitrary content: one that was here before, the smallest that has room, or a
        new one."""
        free = self._free.setdefault((dtype, device), [])
        for position, tensor in enumerate(free):
            if tensor.shape == (rows, columns):
                return free.pop(position)
        size = rows * columns
        free.sort(key=_room)
        for position, tensor in enumerate(free):
            if 0 < size <= _room(tensor):
                return _whole(free.pop(position))[:size].view(rows, columns)
        if free and size > 0:  # too small once, so it is replaced, not kept beside
            free.pop()
        return torch.empty(rows, columns, dtype=dtype, device=device)

    def give_back(self, tensor: torch.Tensor) -> None:
        """Nobody needs its content any more."""
        if tensor.numel() > 0:
            self._free[tensor.dtype, tensor.device].append(tensor)


def _room(tensor: torch.Tensor) -> int:
    """Numbers that fit into the memory that it is a part of."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of that memory."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
