"""The free memory of the machine, of the container that the process runs in, or of a GPU."""

from __future__ import annotations

from pathlib import Path

import torch

_CGROUPS = Path("/sys/fs/cgroup")


def free_memory(device: torch.device, processes: int = 1) -> int | None:
    """The bytes that each of so many processes on this machine may still take; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    import psutil

    free = int(psutil.virtual_memory().available)
    return min([free, *_free_in_groups()]) // processes


def process_memory() -> int:
    """The bytes that this process holds now."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def _free_in_groups(root: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """The free bytes in every control group with a limit that this process is in."""
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
        for depth in range(len(parts) + 1):  # the limit of a group holds for all groups inside it
            found += _free_in_group(place.joinpath(*parts[:depth]), *names)
    return found


def _free_in_group(group: Path, limit: str, usage: str, reclaimable: str) -> list[int]:
    """Limit minus usage; cached files can be dropped and count as free. Empty without a limit."""
    try:
        most = int((group / limit).read_text())
        used = int((group / usage).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group, or "max": no limit
        return []
    return [max(0, most - used + int(stat.get(reclaimable, 0)))]
