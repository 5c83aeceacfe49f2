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
            f"dtype = {dtype} would lose small updates of the rows; take torch.float32 or torch.float64 (rows that are "
            f"kept in bfloat16: param_dtype)"
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


def checked_short(kept: torch.dtype | None, dtype: torch.dtype) -> torch.dtype:
    """The precision in which rows are kept, if it goes with the one in which is computed."""
    if kept is None or kept == dtype:
        return dtype
    if kept != torch.bfloat16:
        raise TrainingError(
            f"param_dtype = {kept} with dtype = {dtype}; rows are kept as is computed, or in torch.bfloat16"
            + (": the squares that Adam keeps are too small for torch.float16" if kept == torch.float16 else "")
        )
    if dtype != torch.float32:
        raise TrainingError(f"param_dtype = {kept} goes with dtype = torch.float32, not with {dtype}")
    return kept


def _there() -> str:
    known = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return " and ".join(["cpu", *(name for name, available in known.items() if available)])
