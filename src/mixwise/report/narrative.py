"""The result in plain words: which method was best, by how much, at what communication cost, and how certainly."""

from __future__ import annotations

from mixwise.report.folder import RunFolder
from mixwise.report.paired import ENOUGH_SEEDS, Paired, p_value
from mixwise.report.paired import seeds as in_seeds
from mixwise.report.records import MetricName, metric_name
from mixwise.report.table import Cell, Row, Table

_MARK = "\0"  # around the name of a variant, which is emphasized


def narrative(folder: RunFolder, table: Table) -> list[tuple[str, bool]]:
    """A paragraph about the folder of a topology: texts, and whether to emphasize each."""
    ranked = table.ranked()
    if not ranked and any(row.diverged for row in table.rows.values()):
        return [(f"There is nothing to compare: {_diverged(table)}", False)]
    if not ranked:
        return [("There is nothing to compare yet: no run has recorded the metrics of the table.", False)]
    so_far = "" if folder.finished else "Not all runs are finished; so far: "
    story = so_far + _result(table, ranked, metric_name(table.metrics[0]))
    story += f" {_diverged(table)}" if any(row.diverged for row in table.rows.values()) else ""
    for sign in ("±", "%"):  # a number stays on one line
        story = story.replace(f" {sign}", f"\N{NO-BREAK SPACE}{sign}").replace("± ", "±\N{NO-BREAK SPACE}")
    parts = story.split(_MARK)
    return [(text, k % 2 == 1) for k, text in enumerate(parts) if text]


def _result(table: Table, ranked: list[Row], metric: MetricName) -> str:
    contenders = table.contenders()
    winner, *others = contenders
    seeds = min(row.seeds - len(row.diverged) for row in ranked)
    if len(ranked) == 1:
        over = f" over {seeds} seeds" if seeds > 1 else ""
        cost = f", after sending {in_bytes(winner.bytes_per_node)} per node" if winner.bytes_per_node else ""
        return f"{_name(winner)} reaches {_text(winner, metric)}{over}{cost}.{_own_edges(winner)}{_doubt(seeds)}"
    among = f" of {len(contenders)} methods" if len(contenders) > 2 else ""
    spread = " (mean ± standard deviation)" if _cell(winner).std is not None else ""
    label = f"{metric.label[0].lower()}{metric.label[1:]}"
    kind = f" (a control: {winner.control})" if winner.control else ""
    story = f"{_name(winner)}{kind} did best{among}: {label} {_text(winner, metric)}{spread}."
    if others:
        baseline = next((row for row in others if row.plain), others[0])
        story += _comparison(winner, baseline, metric, table.difference(winner.variant, baseline.variant))
        if others[0] is not baseline:
            pair = table.difference(winner.variant, others[0].variant)
            close = "" if pair is None or pair.half is None or pair.clear else ", too close to call"
            story += f" Second is {_name(others[0])} with {_text(others[0], metric)}{close}."
    for control in (row for row in others if row.is_control_of(winner)):
        pair = table.difference(winner.variant, control.variant)
        adds = "" if pair is None else f": looking at the nodes adds {pair.text(metric.percent)}"
        story += f" Its control {_name(control)} ({control.control}) reaches {_text(control, metric)}{adds}."
    story += _own_edges(winner)
    reference = next((row for row in ranked if row.reference), None)
    if reference is not None and not winner.reference:
        story += f" For reference, {_name(reference)} averages over all nodes and reaches {_text(reference, metric)}."
    suggestion = f" {table.suggestion}" if table.suggestion else ""
    return story + _doubt(seeds) + suggestion


def _comparison(winner: Row, other: Row, metric: MetricName, pair: Paired | None) -> str:
    role = " (plain gossip with Metropolis-Hastings weights)" if other.plain else ""
    if len(other.diverged) > len(winner.diverged):  # it may have the better mean over the seeds that are left
        return f" {_name(other)}{role} reached {_text(other, metric)} on the seeds on which it did not diverge."
    story = f" That is {_difference(winner, other, metric)} than {_name(other)}{role}, "
    story += f"which reached {_text(other, metric)}.{_certainty(pair, metric)}"
    mine, theirs = winner.bytes_per_node, other.bytes_per_node
    if mine and theirs:
        story += f" It sent {_ratio(mine, theirs)} ({in_bytes(mine)} per node, compared with {in_bytes(theirs)})."
    return story


def _certainty(pair: Paired | None, metric: MetricName) -> str:
    """The wins, the interval and the test of a paired difference, and what follows from them."""
    if pair is None or pair.half is None:
        return ""
    unit, form = (100, ".1f") if metric.percent else (1, ".3g")
    low, high = (f"{unit * end:{form}}" for end in (pair.mean - pair.half, pair.mean + pair.half))
    story = f" Seed by seed, it is better on {pair.wins} of {in_seeds(pair.seeds)}; the 95 % interval of the difference"
    story += f" is {low} to {high}{' points' if metric.percent else ''}"
    story += "" if pair.p is None else f" (paired t-test: p {p_value(pair.p)})"
    if abs(pair.mean) > pair.half:
        return f"{story}."
    if pair.sweeps:
        sign = p_value(2.0 ** (1 - pair.seeds))
        return f"{story}: the amounts vary, but a win on every seed is no chance (sign test: p {sign})."
    return f"{story}, which includes 0: the difference is not clear."


def _own_edges(row: Row) -> str:
    return f" {_name(row)} sends along edges of its own, which the graph does not have." if row.leaves_graph else ""


def _diverged(table: Table) -> str:
    """A sentence for each method of which seeds have diverged."""
    rows = [row for row in table.rows.values() if row.diverged]
    return " ".join(f"{_name(row)} diverged on {len(row.diverged)} of {in_seeds(row.seeds)}." for row in rows)


def _doubt(seeds: int) -> str:
    if seeds <= 1:
        return " With a single seed, a difference may be due to chance."
    if seeds < ENOUGH_SEEDS:
        return f" With only {seeds} seeds, intervals are wide and small differences may be due to chance."
    return ""


# --- names and numbers in words ---
def _name(row: Row) -> str:
    return f"{_MARK}{row.variant}{_MARK}"


def _cell(row: Row) -> Cell:
    cell = row.cells[0]
    assert cell is not None  # it is ranked
    return cell


def _text(row: Row, metric: MetricName) -> str:
    return _cell(row).text(metric.percent)


def _difference(winner: Row, other: Row, metric: MetricName) -> str:
    best, base = _cell(winner).mean, _cell(other).mean
    word = "higher" if metric.higher else "lower"
    if metric.percent:
        return f"{abs(best - base) * 100:.1f} points {word}"
    if metric.higher and 0 <= min(best, base) <= max(best, base) <= 1:  # a score: 0.90 is not 12 % more than 0.80
        return f"{abs(best - base):.3g} {word}"
    low, high = sorted((abs(best), abs(base)))
    if low > 0 and high / low >= 2:
        return f"{word} by a factor of {high / low:.2g}"
    return f"{abs(best - base) / abs(base):.0%} {word}" if base else f"{abs(best - base):.3g} {word}"


def _ratio(mine: float, theirs: float) -> str:
    if abs(mine / theirs - 1) < 0.02:
        return "about the same number of bytes" if mine != theirs else "the same number of bytes"
    return f"{mine / theirs:.2g} times as many bytes" if mine > theirs else f"{mine / theirs:.0%} of the bytes"


def in_bytes(size: float) -> str:
    """A number of bytes with a readable unit.

    >>> in_bytes(950), in_bytes(1234567), in_bytes(2.5e9)
    ('950 B', '1.23 MB', '2.5 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} B"
