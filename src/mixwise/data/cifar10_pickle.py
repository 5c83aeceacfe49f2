"""The batches of CIFAR-10's Python layout, read without running what they ask for.

They are pickles written by Python 2: a dictionary with `data`, a NumPy array of bytes, and `labels`, a list of small
numbers. A pickle may name any function and have it called. Here the three names such a batch needs stand for objects
that only write down their arguments, every other name is refused, and not even NumPy's own reconstruction runs.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mixwise.errors import DataError

ByteArray: TypeAlias = npt.NDArray[np.uint8]


class _Note:
    """What a pickle wanted made: the arguments of the call, and the state it wanted set."""

    __slots__ = ("arguments", "state")

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Name:
    """Stands for a function or class that a pickle names; a call leaves a note."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> _Note:
        return _Note(arguments)


_NAMES = {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """A stand-in for the names that a batch needs; nothing is imported."""
        if (module, name) not in _NAMES:
            raise DataError(f"the pickle asks for {module}.{name}, which no batch of CIFAR-10 does")
        return _Name()


def unpickled_batch(content: bytes) -> tuple[ByteArray, ByteArray]:
    """(data, labels) of one batch, (n, 3072) and (n,)."""
    try:
        batch = _Reader(io.BytesIO(content), encoding="bytes").load()
        return _array(batch[b"data"]), np.array(list(map(_byte, batch[b"labels"])), dtype=np.uint8)
    except DataError:
        raise
    except Exception as error:  # a broken pickle can fail in any way
        raise DataError(f"not a batch of CIFAR-10 ({type(error).__name__}: {error})") from None


def _array(note: _Note) -> ByteArray:
    """The array that NumPy would make of (version, shape, dtype, Fortran order, bytes); only rows of bytes pass."""
    _, shape, dtype, fortran, raw = note.state
    if dtype.arguments[0] != b"u1" or fortran or not isinstance(raw, bytes):
        raise DataError("its data are not an array of bytes in C order")
    return np.frombuffer(raw, np.uint8).reshape(shape)


def _byte(label: Any) -> int:
    if not isinstance(label, int) or not 0 <= label < 256:
        raise DataError(f"a label {label!r}, expected a small whole number")
    return label
