"""Curves of an experiment, as PNG and SVG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mixwise.report.results import Results, higher_is_better, recorded_steps, rolling_mean

# Okabe and Ito's colors: told apart by color-blind readers too. Line styles tell them apart in gray.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":")


def save_curves(results: Results, metrics: Sequence[str], window: int, folder: Path, name: str) -> list[Path]:
    """One panel per metric: mean over seeds of the windowed average, a band of one standard deviation, log scale."""
    # Slow to import, and only figures need it. A Figure without pyplot opens no window and keeps no global state.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    families = list(dict.fromkeys(variant.partition("@")[0] for variant in results))
    with rc_context({"svg.hashsalt": name, "font.size": 9}):  # the salt makes the SVG the same in every run
        figure = Figure(figsize=(4 * len(metrics), 3.6), layout="constrained")
        panels = figure.subplots(1, len(metrics), squeeze=False)[0]
        for panel, metric in zip(panels, metrics, strict=True):
            for variant, runs in results.items():
                curves = np.array([rolling_mean(steps, metric, window) for steps in runs.values()])
                mean, spread = curves.mean(axis=0), curves.std(axis=0)
                family = families.index(variant.partition("@")[0])
                color, line = COLORS[family % len(COLORS)], LINES[family % len(LINES)]
                label = (
                    families[family] if variant.partition("@")[0] not in panel.get_legend_handles_labels()[1] else None
                )
                step = recorded_steps(next(iter(runs.values())), metric)
                crowded = "@" in variant  # many curves of one family: thin lines, no bands
                line = line if len(step) > 1 else "o"
                panel.plot(step, mean, line, color=color, label=label, linewidth=0.8 if crowded else 1.6)
                if len(curves) > 1 and not crowded:
                    low = np.maximum(mean - spread, mean * 0.1)  # a log axis has no place for 0
                    panel.fill_between(step, low, mean + spread, color=color, alpha=0.15, linewidth=0)
            positive = any(line.get_ydata().max() > 0 for line in panel.get_lines())  # full averaging has distance 0
            log = positive and not higher_is_better(metric)
            panel.set(xlabel="step", title=metric.replace("_", " "), yscale="log" if log else "linear")
            panel.grid(alpha=0.3, linewidth=0.5)
        # Where curves end low, or high, there is room above, or below; matplotlib's own search warns if it is slow.
        panels[0].legend(fontsize=8, loc="lower right" if higher_is_better(metrics[0]) else "upper right")
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / "curves.png", folder / "curves.svg"]
        figure.savefig(paths[0], dpi=160)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths
