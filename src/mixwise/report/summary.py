"""The results of a folder: a table for each topology. Variants on different topologies are never compared."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from mixwise.errors import ConfigError, unknown
from mixwise.report.folder import RunFolder
from mixwise.report.paired import Paired
from mixwise.report.table import Row, Table, tabulate


@dataclass(frozen=True)
class Summary:
    """The tables of a folder, one for each topology; in a notebook, tables.

    Attributes:
        tables: in the order of the recipe; one if it has no topologies.
    """

    tables: tuple[Table, ...]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of all tables."""
        return self.tables[0].metrics

    @property
    def rows(self) -> dict[str, Row]:
        """The variants of all tables, by name."""
        return {name: row for table in self.tables for name, row in table.rows.items()}

    @property
    def steps(self) -> str:
        """The steps that the numbers come from, in words; empty if there are none."""
        return "; ".join(dict.fromkeys(table.steps for table in self.tables if table.steps))

    @property
    def table(self) -> Table:
        """The only table; an error if there are several topologies."""
        if len(self.tables) > 1:
            names = ", ".join(table.topology for table in self.tables)
            raise ConfigError(f"there are several topologies, {names}; choose one of summary.tables")
        return self.tables[0]

    def difference(self, variant: str, other: str, metric: str | None = None) -> Paired | None:
        """Compare two variants seed by seed, in the first metric or in another; None if they share no seed."""
        for name in (variant, other):
            if name not in self.rows:
                raise ConfigError(unknown("variant", name, self.rows))
        table = next(table for table in self.tables if variant in table.rows)
        if other not in table.rows:
            raise ConfigError(
                f"{variant} and {other} are on different topologies, whose nodes hold different data; "
                f"compare variants of one topology"
            )
        return table.difference(variant, other, metric)

    @property
    def notes(self) -> list[str]:
        """Lines below the tables: which runs have diverged, and suggestions."""
        return list(dict.fromkeys(note for table in self.tables for note in table.notes))

    def to_csv(self) -> str:
        """`variant`, then `<metric>_mean` and `<metric>_std` for each metric, and the number of `diverged` seeds."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        several = any("/" in run for run in self.rows)  # topologies
        names = ["topology", "variant"] if several else ["variant"]
        parts = [f"{metric}_{part}" for metric in self.metrics for part in ("mean", "std")]
        writer.writerow([*names, *parts, "diverged"])
        for run, row in self.rows.items():
            numbers = [value for cell in row.cells for value in ((cell.mean, cell.std) if cell else (None, None))]
            name = list(run.rpartition("/")[::2]) if several else [run]
            texts = ("" if value is None else repr(value) for value in numbers)
            writer.writerow([*name, *texts, len(row.diverged)])
        return text.getvalue()

    def __str__(self) -> str:
        """The tables in columns, the best of each marked, and the paired differences."""
        return "\n".join(["\n\n".join("\n".join(_lines(table)) for table in self.tables), *self.notes])

    def to_markdown(self, title: str) -> str:
        """The tables in Markdown, the best of each column in bold, and the paired differences."""
        lines = [f"# {title}"]
        for table in self.tables:
            lines += ["", f"## {table.topology}"] if table.topology else []
            lines += ["", *_markdown(table)]
        lines += [line for note in self.notes for line in ("", note)]
        return "\n".join(lines) + "\n"

    def _repr_html_(self) -> str:
        """The tables for notebooks, with every name escaped."""
        return "".join(map(_html, self.tables)) + "".join(f"<p>{escape(note)}</p>" for note in self.notes)


def summarize(folder: RunFolder, *, strict: bool = False) -> Summary:
    """The tables of a folder, from the runs that have records; with `strict`, an error if a metric has none."""
    return Summary(tuple(tabulate(part, strict=strict) for part in folder.by_topology()))


def _lines(table: Table) -> Iterable[str]:
    """The lines of a table as text."""
    cells = [[table.name(row), *(f"{'*' * best}{text}" for text, best in table.texts(row))] for row in table.shown]
    widths = [max(map(len, column)) for column in zip(table.head, *cells, strict=True)]
    for line in (table.head, ["─" * width for width in widths], *cells):
        yield "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
    yield f"{table.caption}; * marks the best."
    if found := table.differences():
        yield f"{table.comparison}:"
        yield from (f"  {name}: {text}" for name, text in found.items())


def _markdown(table: Table) -> Iterable[str]:
    """The lines of a table in Markdown."""
    yield from (f"{table.caption}; the best of each column in bold.", "")
    yield from (f"| {' | '.join(table.head)} |", "|" + "---|" * len(table.head))
    for row in table.shown:
        shown = [f"**{text}**" if best else text for text, best in table.texts(row)]
        yield f"| {table.name(row)} | {' | '.join(shown)} |"
    if found := table.differences():
        yield from ("", f"{table.comparison}:", "", *(f"- {name}: {text}" for name, text in found.items()))


def _html(table: Table) -> str:
    """A table in HTML."""
    head = "".join(f"<th>{escape(name)}</th>" for name in table.head)
    body = ""
    for row in table.shown:
        shown = (f"<b>{text}</b>" if best else text for text, best in table.texts(row))
        name = f'<th style="text-align: left">{escape(table.name(row))}</th>'
        body += f"<tr>{name}{''.join(f'<td>{cell}</td>' for cell in shown)}</tr>"
    caption = escape(f"{table.caption}; the best of each column in bold")
    made = f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    found = [escape(f"{name}: {text}") for name, text in table.differences().items()]
    return made + (f"<p>{escape(table.comparison)}:<br/>{'<br/>'.join(found)}</p>" if found else "")
