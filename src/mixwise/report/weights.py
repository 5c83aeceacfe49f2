"""The weights of a run over time, read from `weights.jsonl` and packed for a page.

`mixwise.training.run_log` describes the file. On a page, all arcs that ever carry a weight are listed once; a
round is a string with two letters per arc, its weight in thousandths in base 64, or, if few arcs carry a weight, a
list: arc, weight, arc, weight, …
"""

from __future__ import annotations

from typing import Any, TypeAlias

from mixwise.graphs import Graph
from mixwise.report.folder import Run
from mixwise.report.records import Steps, thinned

Arcs: TypeAlias = list[tuple[int, int, int]]  # (i, j, thousandths) of one round
Frame: TypeAlias = dict[str, list[Arcs]]  # channel -> rounds

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_CHANNELS = ("params", "updates")


def graph_of(scene: dict[str, Any]) -> Graph:
    """The graph that a scene describes."""
    return Graph(scene["n"], [(int(i), int(j)) for i, j in scene["edges"]], directed=bool(scene.get("directed")))


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


def frames(run: Run, lines: Steps) -> list[tuple[int, Frame]]:
    """Step and rounds of each line; empty if the lines are damaged or do not fit the graph of the scene."""
    if run.scene is None:
        return []
    graph = graph_of(run.scene)
    try:
        return [(line["step"], _frame(line, graph)) for line in lines]
    except (KeyError, ValueError, TypeError, IndexError):
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
    if "list" in round_:
        return [(int(i), int(j), int(w)) for i, j, w in round_["list"]]
    if "edges" in round_:
        both = zip(graph.edges, round_["edges"], strict=True)
        return [arc for (i, j), w in both if w for arc in ((i, j, int(w)), (j, i, int(w)))]
    arcs = zip(graph.arcs.senders.tolist(), graph.arcs.receivers.tolist(), round_["arcs"], strict=True)
    return [(i, j, int(w)) for i, j, w in arcs if w]


def _packed(arcs: Arcs, index: dict[tuple[int, int], int]) -> str | list[int]:
    if 3 * len(arcs) < len(index):
        return [number for i, j, w in arcs for number in (index[i, j], w)]
    weights = [0] * len(index)
    for i, j, w in arcs:
        weights[index[i, j]] = w
    return "".join([LETTERS[w >> 6] + LETTERS[w & 63] for w in weights])
