"""Named random streams: every random draw in mixwise comes from a seed and a name for its purpose.

Streams with different names are independent; the same seed and name give the same draws in every process. There is no
global generator.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mixwise.errors import MixwiseError

if TYPE_CHECKING:
    import torch

Name = str | int


def stream(seed: int, *names: Name) -> int:
    """The 63-bit seed of the stream `names` under `seed`, the same on every machine.

    >>> stream(0, "noise", 3) == stream(0, "noise", 3)
    True
    >>> stream(0, "noise", 3) == stream(0, "noise", 4)
    False
    """
    # repr distinguishes 1 from "1"; the separator distinguishes ("ab", "c") from ("a", "bc").
    try:
        key = "\x1f".join([repr(part if isinstance(part, str) else int(part)) for part in (seed, *names)])
    except TypeError:
        raise MixwiseError(f"seed = {seed!r}; give a whole number: the same seed gives the same run") from None
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *names: Name) -> torch.Generator:
    """The torch generator of a stream, on the CPU."""
    import torch  # slow to import: graphs and reports do without it

    return torch.Generator().manual_seed(stream(seed, *names))


def numpy_generator(seed: int, *names: Name) -> np.random.Generator:
    """The NumPy generator of a stream."""
    return np.random.Generator(np.random.PCG64(stream(seed, *names)))


def hashed(values: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.uint64]:
    """Integers that look random, one for each value, the same on every machine (SplitMix64)."""
    x = values.astype(np.uint64) + np.uint64(seed & (2**64 - 1))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
