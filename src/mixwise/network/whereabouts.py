"""Where a process is: those that share a kernel and its loopback are near to each other."""

from __future__ import annotations

import os
from pathlib import Path


def whereabouts() -> str | None:
    """The same text on all processes of one machine and network namespace; None where the system does not tell.

    A namespace has its own interfaces, so that two of them on one machine may have a slow link between them.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return None
