"""Random layers draw from torch's global generator; here it is lent, and given back as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def own_randomness(device: torch.device) -> Iterator[Callable[[int], object]]:
    """What happens inside leaves the global generator as it was; yields a function that seeds it meanwhile."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        # Not torch.manual_seed on a CPU: it also notes the seed for GPUs to come, which takes 1 ms or 2.
        yield torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed
