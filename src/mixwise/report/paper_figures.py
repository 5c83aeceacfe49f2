"""Static figures for papers: curves, the graph with its weights, the partition; as wide as a column or the text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mixwise.errors import ConfigError
from mixwise.report.columns import columns
from mixwise.report.figures import COLORS, LINES
from mixwise.report.folder import Run, RunFolder, read_folder
from mixwise.report.metric_names import MetricName, metric_name
from mixwise.report.moving_weights import Frame, frames, graph_of
from mixwise.report.positions import positions
from mixwise.report.standings import numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTHS = {"column": 3.25, "text": 6.75}  # inches
FORMATS = ("pdf", "png", "svg")
_STYLE: dict[Any, Any] = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False,
    "pdf.fonttype": 42,  # letters stay letters, which publishers ask for
    "svg.hashsalt": "mixwise",
}  # fmt: skip
_CLASSES = (
    "#332288",
    "#88CCEE",
    "#117733",
    "#DDCC77",
    "#CC6677",
    "#44AA99",
    "#882255",
    "#999933",
    "#AA4499",
    "#BBBBBB",
)


def save_paper_figures(run: Path, formats: Sequence[str], width: str = "column", out: Path | None = None) -> list[Path]:
    """Write every figure that the folder has data for: `curve-METRIC`, `graph-VARIANT`, `partition`."""
    from matplotlib import rc_context

    for name in formats:
        if name not in FORMATS:
            raise ConfigError(f"--format {name}: choose from {', '.join(FORMATS)}, such as pdf,png")
    if not run.is_dir():
        raise ConfigError(f"there is no folder {run}; name a folder that mixwise run has made")
    folder, target, paths = read_folder(run), out or run / "figures", []
    try:
        target.mkdir(parents=True, exist_ok=True)
        with rc_context(_STYLE):
            for name, figure in _figures(folder, WIDTHS[width]):
                for suffix in formats:
                    paths.append(target / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}.{suffix}")
                    metadata = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[suffix]
                    figure.savefig(paths[-1], dpi=300, metadata=metadata)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}; choose another with --out") from None
    if not paths:
        raise ConfigError(f"{run} holds nothing to draw: {'; '.join(folder.problems) or 'no records'}")
    return paths


def _figures(folder: RunFolder, width: float) -> Iterator[tuple[str, Figure]]:
    for metric in dict.fromkeys([*folder.metrics, "loss"]):
        if any(numbers(run.records, metric) for run in folder.runs):
            yield f"curve-{metric}", _curve(folder, metric_name(metric), width)
    for variant in folder.variants:
        run = next((run for run in folder.of(variant) if run.scene is not None and run.weights), None)
        if run is not None and (figure := _graph(run, width)) is not None:
            yield f"graph-{variant}", figure
    labeled = next((run for run in folder.runs if run.scene is not None and run.scene.get("counts")), None)
    if labeled is not None:
        yield "partition", _partition(labeled, width)


def _plain(text: str) -> str:
    """A name as it is: dollar signs would begin a formula."""
    return text.replace("$", r"\$")


def _new(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure  # slow to import, and only figures need it

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


# --- curves ---
def _curve(folder: RunFolder, metric: MetricName, width: float) -> Figure:
    columns_ = max(
        1, int(width / (0.45 + 0.062 * max(map(len, folder.variants))))
    )  # of the legend: letters are so wide
    rows = -(-len(folder.variants) // columns_)
    figure, panel = _new(width, (0.62 if width < 5 else 0.42) * width + 0.14 * rows)
    unit = 100.0 if metric.percent else 1.0
    drawn = []
    for v, variant in enumerate(folder.variants):
        table = _by_step(folder.of(variant), metric.key)
        if not table:
            continue
        steps = np.array(sorted(table))
        mean = unit * np.array([np.mean(table[step]) for step in steps])
        spread = unit * np.array([np.std(table[step], ddof=1) if len(table[step]) > 1 else 0.0 for step in steps])
        color, line = COLORS[v % len(COLORS)], LINES[v % len(LINES)]
        drawn.append(mean)
        if len(steps) > 1:
            panel.plot(steps, mean, line, color=color, label=_plain(variant), linewidth=1.1)
            panel.fill_between(steps, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0)
        else:
            panel.errorbar(steps, mean, spread, fmt="o", color=color, label=_plain(variant), markersize=3, linewidth=1)
    values = np.concatenate(drawn)
    positive = values[values > 0]
    if not metric.higher and len(positive) and positive.max() / positive.min() > 20:
        panel.set_yscale("log")
        panel.set_ylim(bottom=max(positive.min() / 1.2, float(np.quantile(positive, 0.04)) / 30))
    panel.set(xlabel="step", ylabel=metric.label + (" (%)" if metric.percent else ""))
    panel.grid(alpha=0.3, linewidth=0.4)
    figure.legend(
        loc="outside lower center", ncols=columns_, frameon=False, handlelength=2.2, columnspacing=1.0, labelspacing=0.2
    )
    return figure


def _by_step(runs: list[Run], metric: str) -> dict[int, list[float]]:
    """The values of all seeds at each step."""
    table: dict[int, list[float]] = {}
    for groups in columns(runs, [metric], most=400):
        for group in groups:
            for step, value in zip(group["steps"], group["y"][metric], strict=True):
                if value is not None:
                    table.setdefault(step, []).append(value)
    return table


# --- the graph ---
def _graph(run: Run, width: float) -> Figure | None:
    """The graph with the weights of the last two looks, which are a whole turn of a policy that takes turns."""
    assert run.scene is not None
    graph = graph_of(run.scene)
    spots, last = positions(graph), frames(run, run.weights[-2:])
    arcs = _mean_weights([frame for _, frame in last])
    if spots is None or not arcs:
        return None
    side = min(width, 3.25)
    figure, panel = _new(side, side)
    spots = spots * (1, -1)
    for i, j in graph.edges:
        panel.plot(spots[[i, j], 0], spots[[i, j], 1], color="0.85", linewidth=0.5, zorder=1)
    for i, j in {(min(arc), max(arc)) for arc in arcs}:
        _ribbon(panel, spots[i], spots[j], arcs.get((j, i), 0.0), arcs.get((i, j), 0.0))
    radius = min(0.05, 0.22 / np.sqrt(graph.n))
    for i in range(graph.n):
        _node(panel, spots[i], radius, i, run.scene)
    panel.set(
        xlim=(-0.1, 1.1),
        ylim=(-1.1, 0.1),
        aspect="equal",
        title=f"{_plain(run.variant)}, step {' and '.join(str(step) for step, _ in last)}",
    )
    panel.axis("off")
    return figure


def _mean_weights(looks: list[Frame]) -> dict[tuple[int, int], float]:
    """By arc, rounds added up."""
    arcs: dict[tuple[int, int], float] = {}
    for frame in looks:
        for i, j, w in (arc for round_ in frame.get("params", []) for arc in round_):
            arcs[i, j] = arcs.get((i, j), 0.0) + w / 1000 / len(looks)
    return arcs


def _ribbon(panel: Axes, start: Any, stop: Any, heard_at_start: float, heard_at_stop: float) -> None:
    """As wide, at each end, as the weight that arrives there."""
    way = stop - start
    normal = np.array([-way[1], way[0]]) / max(1e-9, float(np.hypot(*way)))
    a, b = 0.05 * heard_at_start * normal, 0.05 * heard_at_stop * normal
    corners = np.stack([start + a, stop + b, stop - b, start - a])
    panel.fill(corners[:, 0], corners[:, 1], color="#4A7BA6", alpha=0.8, linewidth=0, zorder=2)


def _node(panel: Axes, spot: Any, radius: float, node: int, scene: dict[str, Any]) -> None:
    from matplotlib.patches import Circle, Wedge

    counts = scene.get("counts")
    panel.add_patch(Circle(spot, radius, facecolor="white", edgecolor="0.5", linewidth=0.5, zorder=3))
    if counts is not None and sum(counts[node]):
        shares = np.cumsum([0.0, *counts[node]]) / sum(counts[node])
        for k, (a, b) in enumerate(pairwise(shares)):
            if b > a:
                wedge = Wedge(spot, radius, 90 - 360 * b, 90 - 360 * a, width=0.45 * radius, linewidth=0, zorder=4)
                wedge.set_facecolor(_class_color(k, len(counts[node])))
                panel.add_patch(wedge)
    if scene["n"] <= 64:
        panel.text(float(spot[0]), float(spot[1]), str(node), ha="center", va="center", fontsize=5, zorder=5)


def _class_color(k: int, classes: int) -> Any:
    from matplotlib import colormaps

    return _CLASSES[k] if classes <= len(_CLASSES) else colormaps["cividis"](k / (classes - 1))


# --- the partition ---
def _partition(run: Run, width: float) -> Figure:
    assert run.scene is not None
    counts = np.array(run.scene["counts"], dtype=float)
    n, classes = counts.shape
    figure, panel = _new(width, min(9.0, 0.7 + 0.13 * n))
    i, k = np.nonzero(counts)
    colors = [_class_color(int(label), classes) for label in k]
    panel.scatter(k, i, s=70 * counts[i, k] / counts.max(), c=colors, marker="s", linewidths=0)
    panel.set(ylabel="node", xlim=(-0.6, classes - 0.4), ylim=(n - 0.4, -0.6))
    names = [_plain(str(name)) for name in run.scene["classes"]]
    long = max(map(len, names)) > 2
    panel.set_xticks(range(classes), names, rotation=45 if long else 0, ha="right" if long else "center")
    panel.set_yticks(range(0, n, 1 if n <= 32 else 10))
    panel.grid(alpha=0.2, linewidth=0.4)
    return figure
