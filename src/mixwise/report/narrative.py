"""The result in plain words: who won, by how much, at what communication, and how sure that is.

A sentence is a list of parts, each a text and whether to stress it: whoever shows it decides how.
"""

from __future__ import annotations

from typing import TypeAlias

from mixwise.report.folder import RunFolder
from mixwise.report.metric_names import MetricName, metric_name
from mixwise.report.standings import Standing, Standings
from mixwise.report.table import Cell

Part: TypeAlias = tuple[str, bool]  # text, stressed

_ENOUGH = 5  # seeds; a deviation of fewer is a rough guess


def narrative(folder: RunFolder, table: Standings) -> list[Part]:
    """A paragraph about a folder."""
    if not table.metrics or not table.ranked():
        return [("There is nothing to compare yet: no run has a record of the metrics in the table.", False)]
    metric, ranked = metric_name(table.metrics[0]), table.ranked()
    gossip = [row for row in ranked if row.gossip] or ranked
    winner = gossip[0]
    parts: list[Part] = [] if folder.finished else [("Not all runs are finished; so far: ", False)]
    if len(ranked) == 1:
        over = f" over {_count(winner.seeds, 'seed')}" if winner.seeds > 1 else ""
        parts += [(winner.variant, True), (f" ends at {_said(winner, metric)}{over}", False)]
        return [*parts, (f"{_cost(winner)}. {_doubt(winner.seeds)}", False)]
    parts += [*_victory(winner, metric, len(gossip))]
    parts += _against(winner, _baseline(winner, gossip), metric)
    if len(gossip) > 1 and gossip[1] is not _baseline(winner, gossip):
        parts += _runner_up(winner, gossip[1], metric)
    if (bound := next((row for row in ranked if not row.gossip), None)) is not None and winner.gossip:
        parts += _bound(bound, metric)
    return [*parts, (_doubt(min(row.seeds for row in ranked)), False)]


def _victory(winner: Standing, metric: MetricName, others: int) -> list[Part]:
    among = f" of {others} methods" if others > 2 else ""
    mean = ", mean ± standard deviation" if _cell(winner).std is not None else ""
    return [
        (winner.variant, True),
        (f" did best{among}: {metric.label[0].lower()}{metric.label[1:]} {_said(winner, metric)}{mean}.", False),
    ]


def _baseline(winner: Standing, gossip: list[Standing]) -> Standing | None:
    """What to compare with: the best plain D-SGD with Metropolis-Hastings weights, or else who came second."""
    others = [row for row in gossip if row is not winner]
    return next((row for row in others if row.plain), others[0] if others else None)


def _against(winner: Standing, other: Standing | None, metric: MetricName) -> list[Part]:
    if other is None:
        return []
    role = ", plain gossip with Metropolis-Hastings weights," if other.plain else ""
    parts: list[Part] = [(f" That is {_difference(winner, other, metric)} than ", False), (other.variant, True)]
    parts.append((f"{role} at {_said(other, metric)}{_certainty(winner, other)}.", False))
    ratio = _ratio(winner.bytes_per_node, other.bytes_per_node)
    if ratio is not None and winner.bytes_per_node is not None and other.bytes_per_node is not None:
        sent = f"{in_bytes(winner.bytes_per_node)} per node against {in_bytes(other.bytes_per_node)}"
        parts.append((f" It sent {ratio} ({sent}).", False))
    return parts


def _runner_up(winner: Standing, second: Standing, metric: MetricName) -> list[Part]:
    close = _overlap(winner, second)
    tail = ", too close to tell apart" if close else ""
    return [(" Second is ", False), (second.variant, True), (f" with {_said(second, metric)}{tail}.", False)]


def _bound(bound: Standing, metric: MetricName) -> list[Part]:
    end = f" averages over all nodes and ends at {_said(bound, metric)}."
    return [(" For comparison, ", False), (bound.variant, True), (end, False)]


def _doubt(seeds: int) -> str:
    if seeds <= 1:
        return " One seed only: a difference may be chance."
    if seeds < _ENOUGH:
        return f" With {seeds} seeds, standard deviations are rough and small differences may be chance."
    return ""


# --- numbers in words ---
def _cell(row: Standing) -> Cell:
    cell = row.cells[0]
    assert cell is not None  # it is ranked
    return cell


def _said(row: Standing, metric: MetricName) -> str:
    cell = _cell(row)
    if not metric.percent:
        return str(cell)
    return f"{100 * cell.mean:.1f}" + ("" if cell.std is None else f" ± {100 * cell.std:.1f}") + " %"


def _difference(winner: Standing, other: Standing, metric: MetricName) -> str:
    best, base = _cell(winner).mean, _cell(other).mean
    word = "higher" if metric.higher else "lower"
    if metric.percent:
        return f"{abs(best - base) * 100:.1f} points {word}"
    low, high = sorted((abs(best), abs(base)))
    if low > 0 and high / low >= 2:
        return f"{word} by a factor of {high / low:.2g}"
    return f"{abs(best - base) / abs(base):.0%} {word}" if base else f"{abs(best - base):.3g} {word}"


def _overlap(one: Standing, two: Standing) -> bool | None:
    """Whether mean ± deviation of the two share a value; None if there are no deviations."""
    a, b = _cell(one), _cell(two)
    if a.std is None or b.std is None:
        return None
    return abs(a.mean - b.mean) <= a.std + b.std


def _certainty(winner: Standing, other: Standing) -> str:
    overlap = _overlap(winner, other)
    if overlap is None:
        return ""
    return "; their standard deviations overlap, so this is no clear win" if overlap else ""


def _ratio(mine: float | None, theirs: float | None) -> str | None:
    if not mine or not theirs:
        return None
    if abs(mine / theirs - 1) < 0.02:
        return "about the same number of bytes" if mine != theirs else "the same number of bytes"
    return f"{mine / theirs:.2g} times the bytes" if mine > theirs else f"{mine / theirs:.0%} of the bytes"


def _cost(row: Standing) -> str:
    return f", after sending {in_bytes(row.bytes_per_node)} per node" if row.bytes_per_node else ""


def in_bytes(size: float) -> str:
    """A number of bytes with a readable unit.

    >>> in_bytes(950), in_bytes(1234567), in_bytes(2.5e9)
    ('950 B', '1.23 MB', '2.5 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} B"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
