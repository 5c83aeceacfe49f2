"""Memory for rows in transit, allocated once: fresh pages cost as much as sending what is written to them."""

from __future__ import annotations

import torch


class BufferPool:
    """Lends tensors and takes them back."""

    def __init__(self) -> None:
        self._free: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}

    def take(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A (rows, columns) tensor with arbitrary content: the smallest free one, or a new one."""
        size, free = rows * columns, self._free.setdefault((dtype, device), [])
        free.sort(key=torch.numel)
        for position, storage in enumerate(free):
            if 0 < size <= storage.numel():
                return free.pop(position)[:size].view(rows, columns)
        if free and size > 0:  # too small once, so it is replaced, not kept beside
            free.pop()
        return torch.empty(rows, columns, dtype=dtype, device=device)

    def give_back(self, tensor: torch.Tensor) -> None:
        """Nobody needs its content any more."""
        if tensor.numel() > 0:
            storage = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
            self._free[tensor.dtype, tensor.device].append(storage)
