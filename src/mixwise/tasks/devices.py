"""Devices: which can hold the rows, their random generators, and CPUs on which bfloat16 products fail."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from mixwise.errors import TrainingError

REMEDY = "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment before the program starts"

_PRODUCT = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"


def checked_device(name: str | torch.device, dtype: torch.dtype) -> torch.device:
    """Return the device, if it can hold rows of this dtype.

    >>> checked_device("cpu", torch.float64)
    device(type='cpu')
    """
    if dtype not in (torch.float32, torch.float64):
        raise TrainingError(f"dtype = {dtype} would lose small updates of the rows; use torch.float32 or torch.float64")
    try:
        device = torch.device(name)
        torch.empty(1, dtype=dtype, device=device).item()  # fails on the meta device, which holds no numbers
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        known = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        choices = " or ".join(name for name, available in known.items() if available)
        raise TrainingError(f"device = {str(name)!r} cannot hold {dtype} ({reason}); choose {choices}") from None
    return device


@contextmanager
def own_randomness(device: torch.device) -> Iterator[Callable[[int], object]]:
    """Restore torch's global generator on exit; yields a function that seeds it for the random layers inside."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        # Not torch.manual_seed on a CPU: it also notes the seed for GPUs to come, which takes 1 ms or 2.
        yield torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed


@functools.cache
def broken_bfloat16() -> str | None:
    """Return the signal by which a bfloat16 product kills a process on this CPU, or None if products work.

    Some hypervisors announce AMX, Intel's matrix instructions, without executing them. torch trusts the announcement,
    and the first product of two bfloat16 matrices kills the process by SIGILL: no exception, no message. A child
    process tries it once, and only where the CPU announces AMX and oneDNN is allowed to use it.
    """
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()  # oneDNN ignores values that it does not know
    if not _announces_amx() or (isa.startswith(("SSE", "AVX")) and "AMX" not in isa):
        return None
    code = subprocess.run([sys.executable, "-c", _PRODUCT], capture_output=True, check=False).returncode
    return signal.Signals(-code).name if code < 0 else None


def _announces_amx() -> bool:
    flags = Path("/proc/cpuinfo")
    return flags.exists() and "amx_tile" in flags.read_text()
