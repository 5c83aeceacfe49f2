"""The weights of a run over time, packed for a page.

All arcs that ever carry something are listed once; a round is a text with two letters per arc, its weight in
thousandths to the base 64, or, if few of them carry something, a list: arc, weight, arc, weight, …
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from mixwise.graphs import Graph
from mixwise.report.folder import Run
from mixwise.report.results import Steps
from mixwise.report.weights import decoded

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_PAIRS = [LETTERS[w >> 6] + LETTERS[w & 63] for w in range(1002)]
Frame: TypeAlias = dict[str, list[list[tuple[int, int, int]]]]  # channel -> rounds -> (i, j, thousandths)

_CHANNELS = ("params", "updates")


def graph_of(scene: dict[str, Any]) -> Graph:
    """The graph that a scene describes."""
    return Graph(scene["n"], [(int(i), int(j)) for i, j in scene["edges"]], directed=bool(scene.get("directed")))


def numbers_of(run: Run) -> int:
    """About how many letters the weights of a run take on a page."""
    if run.scene is None or not run.weights:
        return 0
    return 4 * max(len(run.scene["edges"]), int(run.scene["n"])) * len(run.weights)


def moving_weights(run: Run, most: int) -> dict[str, Any] | None:
    """{arcs: i, j, i, j, …; at: steps; params, updates: rounds of each; trees}, or None if there is nothing to show."""
    looked = frames(run, _thinned(run.weights, most))
    arcs = sorted({(i, j) for _, frame in looked for rounds in frame.values() for r in rounds for i, j, _ in r})
    index = {arc: k for k, arc in enumerate(arcs)}
    packed: dict[str, Any] = {"arcs": [end for arc in arcs for end in arc], "at": [step for step, _ in looked]}
    for channel in _CHANNELS:
        if any(frame.get(channel) for _, frame in looked):
            packed[channel] = [[_packed(r, index) for r in frame.get(channel, [])] for _, frame in looked]
    if any(line.get("tree") for line in run.weights):
        packed["tree"] = True
    return packed if arcs else None


def frames(run: Run, lines: Steps) -> list[tuple[int, Frame]]:
    """Step and rounds of each line; none if the lines speak of another graph than the scene, or are damaged."""
    if run.scene is None:
        return []
    graph = graph_of(run.scene)
    try:
        return [(line["step"], _frame(line, graph)) for line in lines]
    except (KeyError, ValueError, TypeError, IndexError):
        return []


def _thinned(lines: Steps, most: int) -> Steps:
    if len(lines) <= most:
        return lines
    chosen = np.unique(np.linspace(0, len(lines) - 1, most).round().astype(int))
    return [lines[k] for k in chosen]


def _frame(line: dict[str, Any], graph: Graph) -> Frame:
    """The rounds of each channel; a tree is shown as a round in which both ends of an edge hear each other."""
    frame = {channel: [decoded(r, graph) for r in line[channel]] for channel in _CHANNELS if line.get(channel)}
    if line.get("tree"):
        frame["params"] = [[arc for i, j in line["tree"] for arc in ((i, j, 500), (j, i, 500))]]
    for rounds in frame.values():
        if any(not (0 <= i < graph.n and 0 <= j < graph.n and 0 <= w <= 1001) for r in rounds for i, j, w in r):
            raise ValueError
    return frame


def _packed(arcs: list[tuple[int, int, int]], index: dict[tuple[int, int], int]) -> str | list[int]:
    if 3 * len(arcs) < len(index):
        return [number for i, j, w in arcs for number in (index[i, j], w)]
    weights = [0] * len(index)
    for i, j, w in arcs:
        weights[index[i, j]] = w
    return "".join([_PAIRS[w] for w in weights])
