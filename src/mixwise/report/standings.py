"""The ranking of the variants of a folder: their metrics over seeds, and the bytes that they sent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mixwise.report.folder import Run, RunFolder
from mixwise.report.metric_names import higher_is_better
from mixwise.report.records import is_number, steps_in_words
from mixwise.report.table import Cell, cell_over

# Every node hears all others in these: bounds for gossip, not gossip.
_NOT_GOSSIP = ("full-averaging", "all-reduce", "local-sgd")


@dataclass(frozen=True)
class Standing:
    """One variant; a cell is None if no record holds its metric."""

    variant: str
    cells: tuple[Cell | None, ...]  # one per metric of the folder
    bytes_per_node: float | None
    seeds: int
    finished: bool
    gossip: bool  # whether nodes talk to neighbors only
    plain: bool  # whether it is D-SGD with Metropolis-Hastings weights: the baseline of the field


@dataclass(frozen=True)
class Standings:
    """All variants of a folder."""

    metrics: tuple[str, ...]
    rows: tuple[Standing, ...]
    steps: str  # the steps that the numbers come from, in words; empty if there are none

    def ranked(self, column: int = 0) -> list[Standing]:
        """The variants that have a finite mean in this column, the best first."""
        if not self.metrics:
            return []
        sign = -1 if higher_is_better(self.metrics[column]) else 1
        found = [(cell.mean, row) for row in self.rows if (cell := row.cells[column]) and math.isfinite(cell.mean)]
        return [row for _, row in sorted(found, key=lambda pair: sign * pair[0])]


def standings(folder: RunFolder) -> Standings:
    """The ranking of a folder, from the runs that have records."""
    used: dict[str, list[list[int]]] = {}
    rows = []
    for variant in folder.variants:
        runs = [run for run in folder.of(variant) if run.records]
        sent = [size for run in runs if (size := _bytes_sent(run)) is not None]
        scene = next((run.scene for run in runs if run.scene is not None), {})
        kinds = scene.get("algorithm_kind"), scene.get("policy_kind")
        rows.append(
            Standing(
                variant,
                cells=tuple(_cell(runs, metric, folder.window, used) for metric in folder.metrics),
                bytes_per_node=float(np.mean(sent)) if sent else None,
                seeds=len(runs),
                finished=bool(runs) and len(runs) == len(folder.seeds) and all(run.finished for run in runs),
                gossip=not any(kind in _NOT_GOSSIP for kind in kinds),
                plain=kinds == ("dsgd", "metropolis-hastings"),
            )
        )
    return Standings(tuple(folder.metrics), tuple(rows), steps_in_words(used) if used else "")


def _cell(runs: list[Run], metric: str, window: int, used: dict[str, list[list[int]]]) -> Cell | None:
    finite = [[record for record in run.records if is_number(record.get(metric))] for run in runs]
    return cell_over(filter(None, finite), metric, window, used) if any(finite) else None


def _bytes_sent(run: Run) -> float | None:
    sizes = [run.records[-1].get(name) for name in ("bytes_parameters", "bytes_sketches")]
    known = [size for size in sizes if is_number(size)]
    return sum(known) if known else None
