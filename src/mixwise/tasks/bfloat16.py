"""Whether this machine can compute bfloat16 products.

Some hypervisors announce AMX, Intel's matrix instructions, without executing them. torch trusts the announcement, and
the first product of two bfloat16 matrices kills the process by SIGILL: no exception, no message.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

REMEDY = "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment before the program starts"

_PRODUCT = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"


@functools.cache
def broken_bfloat16() -> str | None:
    """The signal by which a bfloat16 product kills a process on this CPU, or None if products work.

    A child process tries it once, and only where the CPU announces AMX and oneDNN is allowed to use it.
    """
    if not _announces_amx() or _excludes_amx(os.environ.get("ONEDNN_MAX_CPU_ISA", "")):
        return None
    code = subprocess.run([sys.executable, "-c", _PRODUCT], capture_output=True, check=False).returncode
    return signal.Signals(-code).name if code < 0 else None


def _announces_amx() -> bool:
    flags = Path("/proc/cpuinfo")
    return flags.exists() and "amx_tile" in flags.read_text()


def _excludes_amx(isa: str) -> bool:
    """Whether this value of ONEDNN_MAX_CPU_ISA rules AMX out; oneDNN ignores values that it does not know."""
    return isa.upper().startswith(("SSE", "AVX")) and "AMX" not in isa.upper()
