"""The result in plain words: which method was best, by how much, at what communication cost, and how certainly."""

from __future__ import annotations

from mixwise.report.folder import RunFolder
from mixwise.report.records import MetricName, metric_name
from mixwise.report.table import Cell, Standing, Standings

_ENOUGH_SEEDS = 5  # the standard deviation of fewer is a rough estimate
_MARK = "\0"  # around the name of a variant, which is emphasized


def narrative(folder: RunFolder, table: Standings) -> list[tuple[str, bool]]:
    """A paragraph about a folder: texts, and whether to emphasize each."""
    ranked = table.ranked()
    if not ranked:
        return [("There is nothing to compare yet: no run has recorded the metrics of the table.", False)]
    so_far = "" if folder.finished else "Not all runs are finished; so far: "
    story = so_far + _result(ranked, metric_name(table.metrics[0]))
    return [(text, k % 2 == 1) for k, text in enumerate(story.split(_MARK)) if text]


def _result(ranked: list[Standing], metric: MetricName) -> str:
    gossip = [row for row in ranked if row.gossip] or ranked
    winner, *others = gossip
    seeds = min(row.seeds for row in ranked)
    if len(ranked) == 1:
        over = f" over {seeds} seeds" if seeds > 1 else ""
        cost = f", after sending {in_bytes(winner.bytes_per_node)} per node" if winner.bytes_per_node else ""
        return f"{_name(winner)} reaches {_text(winner, metric)}{over}{cost}.{_doubt(seeds)}"
    among = f" of {len(gossip)} methods" if len(gossip) > 2 else ""
    spread = " (mean ± standard deviation)" if _cell(winner).std is not None else ""
    label = f"{metric.label[0].lower()}{metric.label[1:]}"
    story = f"{_name(winner)} did best{among}: {label} {_text(winner, metric)}{spread}."
    if others:
        baseline = next((row for row in others if row.plain), others[0])
        story += _comparison(winner, baseline, metric)
        if others[0] is not baseline:
            close = ", too close to call" if _overlap(winner, others[0]) else ""
            story += f" Second is {_name(others[0])} with {_text(others[0], metric)}{close}."
    bound = next((row for row in ranked if not row.gossip), None)
    if bound is not None and winner.gossip:
        story += f" For comparison, {_name(bound)} averages over all nodes and reaches {_text(bound, metric)}."
    return story + _doubt(seeds)


def _comparison(winner: Standing, other: Standing, metric: MetricName) -> str:
    role = " (plain gossip with Metropolis-Hastings weights)" if other.plain else ""
    unclear = "; the standard deviations overlap, so the difference is not clear" if _overlap(winner, other) else ""
    story = f" That is {_difference(winner, other, metric)} than {_name(other)}{role}, "
    story += f"which reached {_text(other, metric)}{unclear}."
    mine, theirs = winner.bytes_per_node, other.bytes_per_node
    if mine and theirs:
        story += f" It sent {_ratio(mine, theirs)} ({in_bytes(mine)} per node, compared with {in_bytes(theirs)})."
    return story


def _doubt(seeds: int) -> str:
    if seeds <= 1:
        return " With a single seed, a difference may be due to chance."
    if seeds < _ENOUGH_SEEDS:
        return f" With only {seeds} seeds, standard deviations are rough and small differences may be due to chance."
    return ""


# --- names and numbers in words ---
def _name(row: Standing) -> str:
    return f"{_MARK}{row.variant}{_MARK}"


def _cell(row: Standing) -> Cell:
    cell = row.cells[0]
    assert cell is not None  # it is ranked
    return cell


def _text(row: Standing, metric: MetricName) -> str:
    return _cell(row).text(metric.percent)


def _difference(winner: Standing, other: Standing, metric: MetricName) -> str:
    best, base = _cell(winner).mean, _cell(other).mean
    word = "higher" if metric.higher else "lower"
    if metric.percent:
        return f"{abs(best - base) * 100:.1f} points {word}"
    low, high = sorted((abs(best), abs(base)))
    if low > 0 and high / low >= 2:
        return f"{word} by a factor of {high / low:.2g}"
    return f"{abs(best - base) / abs(base):.0%} {word}" if base else f"{abs(best - base):.3g} {word}"


def _overlap(one: Standing, two: Standing) -> bool:
    """Whether the ranges mean ± deviation of the two share a value; false if there are no deviations."""
    a, b = _cell(one), _cell(two)
    return a.std is not None and b.std is not None and abs(a.mean - b.mean) <= a.std + b.std


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
