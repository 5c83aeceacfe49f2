"""The results on one topology: each metric averaged over the last window of a run, then over seeds.

Runs in progress are compared at the last step that all of them have reached. References, whose nodes hear all others,
are listed apart and are never the best. Variants of which seeds have diverged are ranked last, and their cells average
the other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mixwise.errors import ConfigError, unknown
from mixwise.report.divergence import Divergence, count_in_words, divergences_in_words
from mixwise.report.folder import Run, RunFolder
from mixwise.report.paired import Paired, paired
from mixwise.report.records import higher_is_better, holding, is_number, metric_name, series, steps_in_words

_NAMED = 3  # variants that a suggestion names


@dataclass(frozen=True)
class Cell:
    """Mean over seeds and sample standard deviation; no deviation for a single seed."""

    mean: float
    std: float | None
    values: Mapping[int, float] = field(default_factory=dict, compare=False)  # by seed

    def __str__(self) -> str:
        """Three digits of the mean, and the deviation to the same place: 446 ± 197, (2.16 ± 2.04)e-3."""
        size = math.floor(math.log10(abs(self.mean))) if self.mean and math.isfinite(self.mean) else 0
        unit, places = (1.0, max(0, 2 - size)) if -2 <= size <= 5 else (10.0**size, 2)
        text = f"{self.mean / unit:.{places}f}" + ("" if self.std is None else f" ± {self.std / unit:.{places}f}")
        if unit == 1.0:
            return text
        return f"{text}e{size}" if self.std is None else f"({text})e{size}"

    def text(self, percent: bool) -> str:
        """The cell as a page shows it: 42.4 ± 3.1 % for a share, otherwise as `str` does."""
        if not percent:
            return str(self)
        return f"{100 * self.mean:.1f}" + ("" if self.std is None else f" ± {100 * self.std:.1f}") + " %"


@dataclass(frozen=True)
class Row:
    """One variant; a cell is None if no record holds its metric."""

    variant: str
    cells: tuple[Cell | None, ...]  # one per metric of the table
    bytes_per_node: float | None = None
    seeds: int = 1
    finished: bool = True
    diverged: Mapping[int, Divergence] = field(default_factory=dict, compare=False)  # by seed
    solves: int = 0  # of weights, in all runs
    solves_failed: int = 0
    scene: Mapping[str, Any] = field(default_factory=dict, compare=False)  # with its method in words

    @property
    def reference(self) -> bool:
        """Whether every node hears all others: a yardstick for gossip."""
        return bool(self.scene.get("reference"))

    @property
    def control(self) -> str | None:
        """What its policy sees in place of the nodes' own rows: it is the control of a policy that looks at them."""
        return self.scene.get("control")

    def is_control_of(self, other: Row) -> bool:
        """Whether it differs from the other variant in what its policy sees."""
        same = all(self.scene.get(key) == other.scene.get(key) for key in ("graph", "algorithm"))
        return self.control is not None and same and self.scene.get("control_of") == other.scene.get("policy")

    @property
    def leaves_graph(self) -> bool:
        """Whether it is no reference, but its policy uses edges that the graph does not have."""
        return bool(self.scene.get("own_edges")) and not self.reference

    @property
    def kinds(self) -> tuple[Any, Any]:
        """The names of its algorithm and policy in a recipe."""
        return self.scene.get("algorithm_kind"), self.scene.get("policy_kind")

    @property
    def plain(self) -> bool:
        """Whether it is D-SGD with Metropolis-Hastings weights: the baseline of the field."""
        return self.kinds == ("dsgd", "metropolis-hastings")


@dataclass(frozen=True)
class Table:
    """One row per variant, one cell per metric; all of them on the same topology.

    Attributes:
        metrics: the columns.
        rows: the variants, by name.
        steps: the steps that the numbers come from, in words; empty if there are none.
        seeds: those that all variants have.
        topology: the name of the topology, if the recipe has several.
    """

    metrics: tuple[str, ...]
    rows: dict[str, Row]
    steps: str
    seeds: tuple[int, ...]
    topology: str = ""

    def ranked(self, column: int = 0) -> list[Row]:
        """The variants that have a finite mean in this column, the best first; diverged seeds are worse than any."""
        if not self.metrics:
            return []
        sign = -1 if higher_is_better(self.metrics[column]) else 1
        found = [(cell.mean, row) for row in self.rows.values() if (cell := row.cells[column])]
        return [row for _, row in sorted(found, key=lambda pair: (len(pair[1].diverged), sign * pair[0]))]

    def contenders(self, column: int = 0) -> list[Row]:
        """Those of them that are not references, unless there is nothing else."""
        ranked = self.ranked(column)
        return [row for row in ranked if not row.reference] or ranked

    def is_best(self, row: Row, column: int) -> bool:
        """Whether no contender has a better mean in this column."""
        contenders, cell = self.contenders(column), row.cells[column]
        if cell is None or row not in contenders:
            return False
        best = contenders[0].cells[column]
        return best is not None and cell.mean == best.mean and len(row.diverged) == len(contenders[0].diverged)

    @property
    def baseline(self) -> Row | None:
        """The variant that the others are compared with: plain gossip if it is among them, otherwise the best one."""
        contenders = self.contenders()
        return next((row for row in contenders if row.plain), contenders[0] if contenders else None)

    def difference(self, variant: str, other: str, metric: str | None = None) -> Paired | None:
        """Compare two variants seed by seed, in the first metric or in another; None if they share no seed."""
        metric = metric or self.metrics[0]
        for what, name, known in (
            ("variant", variant, self.rows), ("variant", other, self.rows), ("metric", metric, self.metrics),
        ):  # fmt: skip
            if name not in known:
                raise ConfigError(unknown(what, name, known))
        column = self.metrics.index(metric)
        a, b = self.rows[variant].cells[column], self.rows[other].cells[column]
        return None if a is None or b is None else paired(a.values, b.values, higher=higher_is_better(metric))

    def differences(self) -> dict[str, str]:
        """The first metric of every variant compared with the baseline, in one line each."""
        if (base := self.baseline) is None or len(self.rows) < 2:
            return {}
        found = {name: self.difference(name, base.variant) for name in self.rows if name != base.variant}
        percent = metric_name(self.metrics[0]).percent
        texts = {name: each.text(percent) for name, each in found.items() if each is not None and each.seeds > 1}
        lost = {name: {*self.rows[name].diverged, *base.diverged} for name in texts}
        return {name: text + f" ({len(lost[name])} diverged)" * bool(lost[name]) for name, text in texts.items()}

    def divergences(self) -> list[str]:
        """Which runs have diverged, in one line for each variant."""
        rows = [row for row in self.rows.values() if row.diverged]
        return [f"{row.variant}: {divergences_in_words(row.diverged, row.seeds)}" for row in rows]

    def failed_solves(self) -> list[str]:
        """How many optimizations of the weights have failed, in one line for each variant."""
        return [
            f"{row.variant}: {row.solves_failed:,} of {row.solves:,} solves failed; the weights before stayed in use"
            for row in self.rows.values()
            if row.solves_failed
        ]

    @property
    def suggestion(self) -> str:
        """One line that suggests a control for the policies that look at the nodes; empty if each has one."""
        rows = self.rows.values()
        alone = [row.variant for row in rows if row.scene.get("looks") and not any(r.is_control_of(row) for r in rows)]
        if not alone or len(self.rows) < 2:
            return ""
        names = ", ".join(alone[:_NAMED]) + (f" and {len(alone) - _NAMED} more" if len(alone) > _NAMED else "")
        return f"To see what looking at the nodes adds, compare with control: permuted in the policy of {names}."

    @property
    def notes(self) -> list[str]:
        """Lines below the table: which runs have diverged, which solves have failed, and a suggestion."""
        return [*self.divergences(), *self.failed_solves(), *([self.suggestion] if self.suggestion else [])]

    @property
    def shown(self) -> list[Row]:
        """The rows in the order of a table: the references last."""
        return sorted(self.rows.values(), key=lambda row: row.reference)

    def name(self, row: Row) -> str:
        """The name of a row, with its role as a reference or a control, edges of its own, and its diverged seeds."""
        kind = "reference" if row.reference else f"control: {row.control}" if row.control else ""
        kind = "own edges" if row.leaves_graph and not kind else kind
        notes = [kind] * bool(kind) + [count_in_words(len(row.diverged), row.seeds)] * bool(row.diverged)
        return f"{row.variant} ({', '.join(notes)})" if notes else row.variant

    def texts(self, row: Row) -> list[tuple[str, bool]]:
        """The cells of a row as text, and whether each is the best of its column."""
        missing = "diverged" if row.diverged else "–"
        return [(missing if cell is None else str(cell), self.is_best(row, i)) for i, cell in enumerate(row.cells)]

    @property
    def head(self) -> list[str]:
        """The names of the columns."""
        return ["variant", *(metric.replace("_", " ") for metric in self.metrics)]

    @property
    def caption(self) -> str:
        """The steps and seeds behind the numbers."""
        listed, count = ", ".join(map(str, self.seeds)), len(self.seeds)
        over = f"mean ± standard deviation over {count} seeds ({listed})" if count > 1 else f"seed {listed}"
        return f"{self.steps[0].upper()}{self.steps[1:]}; {over}" if self.steps else over

    @property
    def comparison(self) -> str:
        """The meaning of the differences, in words."""
        label, base = metric_name(self.metrics[0]).label, self.baseline
        return f"{label}, difference from {base.variant if base else ''} paired by seed [95 % interval]"


def tabulate(folder: RunFolder, *, strict: bool = False) -> Table:
    """The table of a folder with one topology, from the runs that have records.

    With `strict`, it is an error if a metric has no record.
    """
    used: dict[str, list[list[int]]] = {}
    ends = [_common_end(folder, metric) for metric in folder.metrics]
    rows = {}
    for variant in folder.variants:
        runs = [run for run in folder.averaged(variant) if run.records]
        diverged = {run.seed: run.divergence for run in folder.of(variant) if run.divergence is not None}
        if strict:
            for run, metric in ((run, metric) for run in runs for metric in folder.metrics):
                series(run.records, metric)
        sent = [size for run in runs if (size := _bytes_sent(run, ends[0] if ends else math.inf)) is not None]
        rows[variant] = Row(
            variant,
            tuple(_cell(runs, m, folder.window, end, used) for m, end in zip(folder.metrics, ends, strict=True)),
            bytes_per_node=float(np.mean(sent)) if sent else None,
            seeds=len(runs) + len(diverged),
            finished=len(runs) + len(diverged) == len(folder.seeds) > 0 and all(run.finished for run in runs),
            diverged=diverged,
            solves=_count("solves", folder.of(variant)),
            solves_failed=_count("solves_failed", folder.of(variant)),
            scene=next((run.scene for run in folder.of(variant) if run.scene is not None), {}),
        )
    known = [{*cell.values, *row.diverged} for row in rows.values() for cell in row.cells if cell is not None]
    seeds = tuple(seed for seed in folder.seeds if all(seed in of_cell for of_cell in known)) or tuple(folder.seeds)
    return Table(tuple(folder.metrics), rows, steps_in_words(used) if used else "", seeds, folder.topology)


def _common_end(folder: RunFolder, metric: str) -> float:
    """The last step at which all runs in progress have a metric; ∞ if every run is compared at its own end."""
    begun = [found for run in folder.runs if not run.finished and (found := holding(run.records, metric))]
    return min((found[-1]["step"] for found in begun), default=math.inf)


def _cell(runs: Sequence[Run], metric: str, window: int, end: float, used: dict[str, list[list[int]]]) -> Cell | None:
    """The cell of a metric over some runs; the steps that it averages are added to `used`.

    A window counts steps, not records: accuracies that are 13 steps apart are not averaged by a window of 5.
    """
    values: dict[int, float] = {}
    for run in runs:
        if found := holding(run.records, metric, end):
            last = [record for record in found if record["step"] > found[-1]["step"] - window]
            values[run.seed] = float(np.mean([record[metric] for record in last]))
            used.setdefault(metric, []).append([record["step"] for record in last])
    if not values:
        return None
    finals = np.array(list(values.values()))
    return Cell(float(finals.mean()), float(finals.std(ddof=1)) if len(finals) > 1 else None, values)


def _count(name: str, runs: Sequence[Run]) -> int:
    """The sum of a number that the last record of a run holds for the whole run."""
    last = [next((r[name] for r in reversed(run.records) if is_number(r.get(name))), 0) for run in runs]
    return int(sum(last))


def _bytes_sent(run: Run, end: float) -> float | None:
    """What each node has sent up to a step, if that is recorded."""
    records = [record for record in run.records if record["step"] <= end]
    sizes = [records[-1].get(name) for name in ("bytes_parameters", "bytes_sketches")] if records else []
    known = [size for size in sizes if is_number(size)]
    return sum(known) if known else None
