"""Where rows can be kept, and in what precision."""

from __future__ import annotations

import torch

from mixwise.errors import TrainingError


def checked_device(name: str | torch.device, dtype: torch.dtype) -> torch.device:
    """The device, if rows of this dtype can be kept there.

    >>> checked_device("cpu", torch.float64)
    device(type='cpu')
    """
    if dtype not in (torch.float32, torch.float64):
        raise TrainingError(
            f"dtype = {dtype} would lose small updates of the rows; take torch.float32 or torch.float64"
        )
    try:
        device = torch.device(name)
        torch.empty(1, dtype=dtype, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise TrainingError(f"device = {str(name)!r} cannot hold {dtype} ({reason}); there is {_there()}") from None
    if device.type == "meta":
        raise TrainingError(f"device = 'meta' holds no numbers; there is {_there()}")
    return device


def _there() -> str:
    known = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return " and ".join(["cpu", *(name for name, available in known.items() if available)])
