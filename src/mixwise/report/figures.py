"""Figures drawn with matplotlib: curves, the graph with its weights, the partition; for run folders and papers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mixwise.errors import ConfigError
from mixwise.graphs.drawing import is_drawable, layout
from mixwise.report.folder import Run, RunFolder, read_folder
from mixwise.report.records import MetricName, Steps, columns, holding, metric_name
from mixwise.report.weights import Frame, frames, graph_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

WIDTHS = {"column": 3.25, "text": 6.75}  # inches
_FORMATS: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "png": {}, "svg": {"Date": None}}  # metadata
_STYLE: dict[Any, Any] = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False,
    "pdf.fonttype": 42,  # text stays text, as publishers require
    "svg.hashsalt": "mixwise",  # the same bits in every run
}  # fmt: skip
# Okabe and Ito's colors, which color-blind readers can tell apart; line styles tell them apart in gray.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", "-.", ":")
_CLASSES = (
    "#332288", "#88CCEE", "#117733", "#DDCC77", "#CC6677", "#44AA99", "#882255", "#999933", "#AA4499", "#BBBBBB",
)  # fmt: skip
_MAX_POINTS = 400  # of a curve

Curve: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64]]  # steps, mean, spread


def save_curves(folder: RunFolder) -> None:
    """Write the curves of a run folder: `figures/curves.png` and `curves.svg`."""
    _save(curves_figure(folder), folder.path / "figures" / "curves", ("png", "svg"), dpi=160)


def curves_figure(
    folder: RunFolder, metrics: Sequence[str] | None = None, width: float | None = None, height: float = 2.8
) -> Figure:
    """One panel per metric, by default of the table, over the steps; each topology has a row of panels, with a legend.

    Curves are averaged over a window of steps and over seeds.
    """
    from matplotlib import rc_context

    metrics = folder.metrics if metrics is None else metrics
    width = width or 3.2 * len(metrics)
    parts = folder.by_topology()
    with rc_context(_STYLE):
        figure = _empty(width, height * len(parts))
        for part, rows in zip(parts, figure.subfigures(len(parts), 1, squeeze=False)[:, 0], strict=True):
            panels = list(rows.subplots(1, len(metrics), squeeze=False)[0])
            for panel, metric in zip(panels, metrics, strict=True):
                runs = {name: [run.records for run in part.averaged(name)] for name in part.variants}
                curves = {name: _curve(records, metric, part.window) for name, records in runs.items()}
                _draw_curves(panel, curves, metric_name(metric))
            _add_legend(figure, rows, panels[0], width)
    return figure


def save_paper_figures(
    run: Path, formats: Sequence[str] = ("pdf",), width: str = "column", out: Path | None = None
) -> list[Path]:
    """Write every figure that the folder has data for: `curve-METRIC`, `graph-VARIANT`, `partition`."""
    from matplotlib import rc_context

    for name in formats:
        if name not in _FORMATS:
            raise ConfigError(f"--format {name}: choose from {', '.join(_FORMATS)}, such as pdf,png")
    folder, target, paths = read_folder(run), out or run / "figures", []
    with rc_context(_STYLE):
        for name, figure in _paper_figures(folder, WIDTHS[width]):
            paths += _save(figure, target / re.sub(r"[^A-Za-z0-9_.-]+", "-", name), formats, dpi=300)
    if not paths:
        raise ConfigError(f"{run} holds nothing to draw: {'; '.join(folder.problems) or 'no records'}")
    return paths


def _paper_figures(whole: RunFolder, width: float) -> Iterator[tuple[str, Figure]]:
    parts = whole.by_topology()
    for folder in parts:
        for name, figure in _figures_of(folder, width):
            several = len(parts) > 1 and not name.startswith("graph-")  # which names the variant
            yield f"{name}-{folder.topology}" if several else name, figure


def _figures_of(folder: RunFolder, width: float) -> Iterator[tuple[str, Figure]]:
    """The figures of one topology."""
    for metric in dict.fromkeys([*folder.metrics, "loss"]):
        if any(holding(run.records, metric) for name in folder.variants for run in folder.averaged(name)):
            yield f"curve-{metric}", curves_figure(folder, [metric], width, (0.62 if width < 5 else 0.42) * width)
    for variant in folder.variants:
        run = next((run for run in folder.of(variant) if run.scene is not None and run.weights), None)
        if run is not None and (figure_ := _graph(run, width)) is not None:
            yield f"graph-{variant}", figure_
    labeled = next((run for run in folder.runs if run.scene is not None and run.scene.get("counts")), None)
    if labeled is not None:
        yield "partition", _partition(labeled, width)


def _empty(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure  # slow to import; without pyplot, no window and no global state

    return Figure(figsize=(width, height), layout="constrained")


def _new(width: float, height: float) -> tuple[Figure, Axes]:
    figure = _empty(width, height)
    return figure, figure.subplots()


def _save(figure: Figure, stem: Path, formats: Sequence[str], dpi: int) -> list[Path]:
    from matplotlib import rc_context

    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = {suffix: stem.with_name(f"{stem.name}.{suffix}") for suffix in formats}
    with rc_context(_STYLE):
        for suffix, path in paths.items():
            figure.savefig(path, dpi=dpi, metadata=_FORMATS[suffix])
    return list(paths.values())


def _escaped(text: str) -> str:
    """A name without formulas: matplotlib reads text between dollar signs as one."""
    return text.replace("$", r"\$")


# --- curves ---
def _curve(runs: Sequence[Steps], metric: str, window: int) -> Curve:
    """The trailing average over a window of steps, as mean and standard deviation over seeds."""
    seeds: dict[int, list[float]] = {}  # by step
    for group in (group for groups in columns(runs, [metric], _MAX_POINTS, window, digits=15) for group in groups):
        for step, value in zip(group["steps"], group["y"][metric], strict=True):
            seeds.setdefault(step, []).append(value)
    steps = sorted(seeds)
    mean = np.array([np.mean(seeds[step]) for step in steps])
    spread = np.array([np.std(seeds[step], ddof=1) if len(seeds[step]) > 1 else 0.0 for step in steps])
    return np.array(steps, dtype=np.int64), mean, spread


def _draw_curves(panel: Axes, curves: Mapping[str, Curve], metric: MetricName) -> None:
    """One line per variant with a band of one standard deviation; variants `NAME@…` share a color and have no band."""
    families = list(dict.fromkeys(variant.partition("@")[0] for variant in curves))
    unit, labeled, drawn = 100.0 if metric.percent else 1.0, set(), [np.zeros(0)]
    for variant, (steps, mean, spread) in curves.items():
        if not len(steps):
            continue
        name, crowded, _ = variant.partition("@")
        family = families.index(name)
        color, line = _COLORS[family % len(_COLORS)], _LINES[family % len(_LINES)]
        label = None if name in labeled else _escaped(name)
        labeled.add(name)
        mean, spread = unit * mean, unit * spread
        drawn.append(mean)
        if len(steps) == 1:
            panel.errorbar(steps, mean, spread, fmt="o", color=color, label=label, markersize=3, linewidth=1)
            continue
        panel.plot(steps, mean, line, color=color, label=label, linewidth=0.6 if crowded else 1.1)
        if not crowded:
            panel.fill_between(steps, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0)
    values = np.concatenate(drawn)
    positive = values[values > 0]
    if not metric.higher and len(positive) and positive.max() / positive.min() > 20:
        panel.set_yscale("log")
        panel.set_ylim(bottom=max(positive.min() / 1.2, float(np.quantile(positive, 0.04)) / 30))
    panel.set(xlabel="step", ylabel=metric.label + (" (%)" if metric.percent else ""))
    panel.grid(alpha=0.3, linewidth=0.4)


def _add_legend(figure: Figure, rows: FigureBase, panel: Axes, width: float) -> None:
    """A legend below a row of panels, in as many columns as fit; the figure grows by its height."""
    handles, labels = panel.get_legend_handles_labels()
    columns = max(1, int(width / (0.45 + 0.062 * max(map(len, labels), default=0))))  # inches per letter
    figure.set_figheight(figure.get_figheight() + 0.14 * -(-len(labels) // columns))
    rows.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=2.2,
        columnspacing=1.0, labelspacing=0.2,
    )  # fmt: skip


# --- the graph ---
def _graph(run: Run, width: float) -> Figure | None:
    """The graph with the mean weights of the last two recorded mixings: a whole turn of an alternating policy."""
    assert run.scene is not None
    graph, last = graph_of(run.scene), frames(run, run.weights[-2:])
    weights = _mean_weights([frame for _, frame in last])
    if not is_drawable(graph) or not weights:
        return None
    from matplotlib.collections import LineCollection, PolyCollection

    figure, panel = _new(min(width, 3.25), min(width, 3.25))
    spots = layout(graph)
    panel.add_collection(LineCollection(spots[graph.edge_array].tolist(), colors="0.85", linewidths=0.5, zorder=1))
    pairs = sorted({(min(arc), max(arc)) for arc in weights})
    ribbons = [_ribbon(spots[i], spots[j], weights.get((j, i), 0.0), weights.get((i, j), 0.0)) for i, j in pairs]
    panel.add_collection(PolyCollection(ribbons, facecolors="#4A7BA6", alpha=0.8, zorder=2))
    radius = min(0.05, 0.22 / np.sqrt(graph.n))
    for node, spot in enumerate(spots):
        _draw_node(panel, spot, radius, node, run.scene)
    panel.set(xlim=(-0.1, 1.1), ylim=(1.1, -0.1), aspect="equal")
    panel.set_title(f"{_escaped(run.variant)}, step {' and '.join(str(step) for step, _ in last)}")
    panel.axis("off")
    return figure


def _mean_weights(looks: list[Frame]) -> dict[tuple[int, int], float]:
    """The weight of each arc, summed over the rounds of a mixing."""
    weights: dict[tuple[int, int], float] = {}
    for frame in looks:
        for i, j, w in (arc for round_ in frame.get("params", []) for arc in round_):
            weights[i, j] = weights.get((i, j), 0.0) + w / 1000 / len(looks)
    return weights


def _ribbon(start: Any, stop: Any, width_at_start: float, width_at_stop: float) -> Any:
    """The corners of an edge, which is as wide at each end as the weight that arrives there."""
    way = stop - start
    normal = np.array([-way[1], way[0]]) / max(1e-9, float(np.hypot(*way)))
    a, b = 0.05 * width_at_start * normal, 0.05 * width_at_stop * normal
    return np.stack([start + a, stop + b, stop - b, start - a])


def _draw_node(panel: Axes, spot: Any, radius: float, node: int, scene: dict[str, Any]) -> None:
    """A circle with a ring of the labels that the node holds."""
    from matplotlib.patches import Circle

    panel.add_patch(Circle(spot, radius, facecolor="white", edgecolor="0.5", linewidth=0.5, zorder=3))
    counts = scene["counts"][node] if scene.get("counts") else []
    if sum(counts):
        colors = [_class_color(k, len(counts)) for k in range(len(counts))]
        ring = {"width": 0.45 * radius, "linewidth": 0, "zorder": 4}
        panel.pie(counts, colors=colors, startangle=-90, radius=radius, center=tuple(spot), wedgeprops=ring)
    if scene["n"] <= 64:
        panel.text(float(spot[0]), float(spot[1]), str(node), ha="center", va="center", fontsize=5, zorder=5)


def _class_color(k: int, classes: int) -> Any:
    from matplotlib import colormaps

    return _CLASSES[k] if classes <= len(_CLASSES) else colormaps["cividis"](k / (classes - 1))


# --- the partition ---
def _partition(run: Run, width: float) -> Figure:
    """One square per node and class, its area proportional to the number of samples."""
    assert run.scene is not None
    counts = np.array(run.scene["counts"], dtype=float)
    n, classes = counts.shape
    figure, panel = _new(width, min(9.0, 0.7 + 0.13 * n))
    i, k = np.nonzero(counts)
    colors = [_class_color(int(label), classes) for label in k]
    panel.scatter(k, i, s=70 * counts[i, k] / counts.max(), c=colors, marker="s", linewidths=0)
    panel.set(ylabel="node", xlim=(-0.6, classes - 0.4), ylim=(n - 0.4, -0.6))
    names = [_escaped(str(name)) for name in run.scene["classes"]]
    long = max(map(len, names)) > 2
    panel.set_xticks(range(classes), names, rotation=45 if long else 0, ha="right" if long else "center")
    panel.set_yticks(range(0, n, 1 if n <= 32 else 10))
    panel.grid(alpha=0.2, linewidth=0.4)
    return figure
