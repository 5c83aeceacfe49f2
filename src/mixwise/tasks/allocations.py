"""How much memory tensors take while they live: a piece of a run is measured by doing it once, in small."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that counts the bytes of every new tensor, including those of backward passes, until it is freed.

    The temporary memory of a kernel is not counted, nor is anything allocated before.

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
        """Run an operation and count the storages of its results that its arguments do not have."""
        kwargs = kwargs or {}
        before = {storage._cdata for storage in _storages((args, kwargs))}
        result = func(*args, **kwargs)
        for storage in _storages(result):
            name, size = storage._cdata, storage.nbytes()
            if name not in before and name not in self._known:
                self._known.add(name)
                self.live += size
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._free, name, size)
        return result

    def _free(self, name: int, size: int) -> None:
        self._known.discard(name)
        self.live -= size


def _storages(values: Any) -> list[torch.UntypedStorage]:
    """The storages of all dense tensors; a sparse one, such as a mixing matrix, is small."""
    tensors = (value for value in tree_leaves(values) if isinstance(value, torch.Tensor))
    return [tensor.untyped_storage() for tensor in tensors if tensor.layout == torch.strided]
