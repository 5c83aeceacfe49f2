"""How much memory there is for a run: of the machine, of the container that it runs in, of a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_CGROUPS = Path("/sys/fs/cgroup")


def free_memory(device: torch.device, processes: int = 1) -> int | None:
    """Bytes that a process may still take, if as many as these share what is free; None where nobody can tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    import psutil

    free = int(psutil.virtual_memory().available)
    return min([free, *_free_in_groups()]) // processes


def process_memory() -> int:
    """Bytes that this process holds now."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def processes_here(world: int) -> int:
    """How many of the processes of a run are on this machine, as launchers say it."""
    return min(world, int(os.environ.get("LOCAL_WORLD_SIZE", world)))


def _free_in_groups(root: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """What every control group around this process leaves, where there is a limit."""
    try:
        lines = own.read_text().splitlines()
    except OSError:  # not Linux
        return []
    found = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            place, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            place, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts) + 1):  # a limit of a group holds for all groups inside
            found += _left(place.joinpath(*parts[:depth]), *names)
    return found


def _left(group: Path, limit: str, usage: str, reclaimable: str) -> list[int]:
    """Limit minus usage; files that are only cached can be dropped."""
    try:
        most = int((group / limit).read_text())
        used = int((group / usage).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group, or "max": no limit
        return []
    return [max(0, most - used + int(stat.get(reclaimable, 0)))]
