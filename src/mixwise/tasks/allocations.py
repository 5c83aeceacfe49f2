"""How much memory tensors take while they live: what a piece of a run needs is seen by doing it once, in small."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, counts the bytes of every tensor that is made, backward passes included, until it is freed.

    What a kernel takes for itself while it runs is not seen, nor what was there before.

    >>> with Allocations() as seen:
    ...     x = torch.ones(1000)
    ...     y = x[:10] + 1
    ...     del x
    >>> seen.peak, seen.live
    (4040, 40)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: int = 0
        self.peak: int = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do it, and look at what came out."""
        kwargs = kwargs or {}
        before = {storage._cdata for storage in _storages((args, kwargs))}
        result = func(*args, **kwargs)
        for storage in _storages(result):
            self._see(storage, before)
        return result

    def _see(self, storage: torch.UntypedStorage, before: set[int]) -> None:
        name = storage._cdata
        if name in before or name in self._known:
            return
        self._known.add(name)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, name, storage.nbytes())

    def _free(self, name: int, size: int) -> None:
        self._known.discard(name)
        self.live -= size


def _storages(values: Any) -> list[torch.UntypedStorage]:
    """Of all dense tensors in there; a sparse one, such as a mixing matrix, is small."""
    tensors = (value for value in tree_leaves(values) if isinstance(value, torch.Tensor))
    return [tensor.untyped_storage() for tensor in tensors if tensor.layout == torch.strided]
