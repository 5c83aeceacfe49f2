"""The weights of a run over time, read from `weights.jsonl` and packed for a page.

`mixwise.training.run_log` describes the file. On a page, all arcs that ever carry a weight are listed once; a
round is a string with two letters per arc, its weight in thousandths in base 64, or, if few arcs carry a weight, a
list: arc, weight, arc, weight, …
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from mixwise.graphs import Graph
from mixwise.report.folder import Run
from mixwise.report.records import Steps, rounded, thinned

Arcs: TypeAlias = list[tuple[int, int, int]]  # (i, j, thousandths) of one round
Frame: TypeAlias = dict[str, list[Arcs]]  # channel -> rounds

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_CHANNELS = ("params", "updates")
_MAX_DOTS = 300  # nodes whose models are shown


def graph_of(scene: dict[str, Any]) -> Graph:
    """The graph that a scene describes."""
    edges = [(int(i), int(j)) for i, j in scene["edges"]]
    return Graph(scene["n"], edges, directed=bool(scene.get("directed")), positions=scene.get("positions"))


def packed_size(run: Run) -> int:
    """Roughly how many letters the weights of a run take on a page."""
    if run.scene is None or not run.weights:
        return 0
    return 4 * max(len(run.scene["edges"]), int(run.scene["n"])) * len(run.weights)


def packed_weights(run: Run, most: int) -> dict[str, Any] | None:
    """{arcs: i, j, i, j, …; at: steps; params, updates: rounds of each; tree} at no more than `most` steps.

    None if there is nothing to show.
    """
    looks = frames(run, thinned(run.weights, most))
    arcs = sorted({(i, j) for _, frame in looks for rounds in frame.values() for r in rounds for i, j, _ in r})
    index = {arc: k for k, arc in enumerate(arcs)}
    packed: dict[str, Any] = {"arcs": [end for arc in arcs for end in arc], "at": [step for step, _ in looks]}
    for channel in _CHANNELS:
        if any(frame.get(channel) for _, frame in looks):
            packed[channel] = [[_packed(r, index) for r in frame.get(channel, [])] for _, frame in looks]
    if any(line.get("tree") for line in run.weights):
        packed["tree"] = True
    return packed if arcs else None


def packed_nodes(run: Run) -> dict[str, Any] | None:
    """{at: steps; size: the largest number; xy: its share, from −1 to 1, two letters each; accuracy: thousandths}.

    None if there is nothing to show.
    """
    n = 0 if run.scene is None else run.scene["n"]
    lines = [line for line in run.nodes if len(line["xy"]) == 2 * n and len(line["accuracy"] or range(n)) == n]
    if not lines or n > _MAX_DOTS:
        return None
    size = max(abs(value) for line in lines for value in line["xy"]) or 1.0
    packed: dict[str, Any] = {"at": [line["step"] for line in lines], "size": rounded(size)}
    packed["xy"] = [_letters(round(2000 * (1 + value / size)) for value in line["xy"]) for line in lines]
    if any(line["accuracy"] for line in lines):
        packed["accuracy"] = [_letters(line["accuracy"] or ()) for line in lines]
    return packed


def frames(run: Run, lines: Steps) -> list[tuple[int, Frame]]:
    """Step and rounds of each line; empty if the lines are damaged or do not fit the graph of the scene."""
    if run.scene is None:
        return []
    graph = graph_of(run.scene)
    try:
        return [(line["step"], _frame(line, graph)) for line in lines]
    except (KeyError, ValueError, TypeError, IndexError, OverflowError):  # the last one: a weight is infinite
        return []


def _frame(line: dict[str, Any], graph: Graph) -> Frame:
    """The rounds of each channel; a tree is shown as one round along its edges, in both directions."""
    frame = {channel: [decoded(r, graph) for r in line[channel]] for channel in _CHANNELS if line.get(channel)}
    if line.get("tree"):
        frame["params"] = [[arc for i, j in line["tree"] for arc in ((i, j, 500), (j, i, 500))]]
    for i, j, w in (arc for rounds in frame.values() for r in rounds for arc in r):
        if not (0 <= i < graph.n and 0 <= j < graph.n and 0 <= w <= 1001):
            raise ValueError
    return frame


def decoded(round_: dict[str, Any], graph: Graph) -> Arcs:
    """The arcs of a round whose weight is not 0."""
    if "pairs" in round_:
        flat = [int(number) for number in round_["pairs"]]
        both = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        return [arc for i, j, w in both for arc in ((i, j, w), (j, i, w))]
    if "list" in round_:
        return [(int(i), int(j), int(w)) for i, j, w in round_["list"]]
    if "edges" in round_:
        weighted = zip(graph.edges, round_["edges"], strict=True)
        return [arc for (i, j), w in weighted if w for arc in ((i, j, int(w)), (j, i, int(w)))]
    arcs = zip(graph.arcs.senders.tolist(), graph.arcs.receivers.tolist(), round_["arcs"], strict=True)
    return [(i, j, int(w)) for i, j, w in arcs if w]


def _packed(arcs: Arcs, index: dict[tuple[int, int], int]) -> str | list[int]:
    if 3 * len(arcs) < len(index):
        return [number for i, j, w in arcs for number in (index[i, j], w)]
    weights = [0] * len(index)
    for i, j, w in arcs:
        weights[index[i, j]] = w
    return _letters(weights)


def _letters(numbers: Iterable[int]) -> str:
    """Two letters for each whole number below 4096."""
    return "".join([LETTERS[w >> 6] + LETTERS[w & 63] for w in numbers])
