"""The files of records, read back when a run resumes: as far as they are intact, and up to its checkpoint."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mixwise.report.folder import Line, read_record
from mixwise.storage import opened

METRICS, TIMINGS, SCENE = "metrics.jsonl", "timings.jsonl", "scene.json"
WEIGHTS, NODES = "weights.jsonl", "nodes.jsonl"
_log = logging.getLogger(__name__)


def cut_run(place: Path, step: int) -> None:
    """Remove all lines but the intact ones of the first steps."""
    for path in (place / METRICS, place / TIMINGS, place / WEIGHTS, place / NODES):
        found = records_before(path, step)
        if found.damaged is not None:
            _log.warning("line %d of %s is damaged; it and the lines after it are removed", found.damaged, path)
        if path.exists() and found.size < path.stat().st_size:
            os.truncate(path, found.size)  # not rewritten: a run that is killed here loses nothing that it needs


class Intact(NamedTuple):
    """The first lines of a file.

    Attributes:
        records: as dictionaries.
        size: bytes of their lines.
        damaged: the number of the line after them, if that is complete and damaged.
    """

    records: list[dict[str, Any]]
    size: int
    damaged: int | None


def records_before(path: Path, steps: int) -> Intact:
    """Return the records of the first `steps` steps, up to a line that is damaged or incomplete."""
    kept, size, damaged = [], 0, None
    with suppress(FileNotFoundError), opened(path, follow=False) as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                break
            record = read_record(line, Line)
            damaged = number if record is None else None
            if record is None or record["step"] >= steps:
                break
            kept.append(record)
            size += len(line)
    return Intact(kept, size, damaged)
