"""What notebooks show: result tables and curves as small pieces of HTML and SVG. All text in them is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from mixwise.report.figures import COLORS
from mixwise.report.results import Results, Steps, higher_is_better, recorded_steps, rolling_mean

_WIDTH, _HEIGHT, _LEFT, _BELOW, _ABOVE = 300, 190, 44, 22, 20
_DASHES = ("", "6 3", "2 3", "8 3 2 3")  # with the colors, so that no curve is known by its color alone


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], bold: Sequence[Sequence[bool]], caption: str) -> str:
    """A table whose first column names the rows."""
    top = "".join(
        f'<th style="text-align:{"right" if i else "left"}">{escape(name)}</th>' for i, name in enumerate(head)
    )
    lines = []
    for cells, strong in zip(rows, bold, strict=True):
        shown = [
            f"<strong>{escape(cell)}</strong>" if s else escape(cell) for cell, s in zip(cells, strong, strict=True)
        ]
        lines.append(
            f'<tr><th style="text-align:left">{shown[0]}</th>'
            + "".join(f'<td style="text-align:right">{cell}</td>' for cell in shown[1:])
            + "</tr>"
        )
    body = f"<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f"<table><caption>{escape(caption)}</caption>{body}</table>"


def legend_html(variants: Sequence[str]) -> str:
    """Which line belongs to which variant."""
    keys = [
        f'<span style="white-space:nowrap;margin-right:1em"><svg width="26" height="8"><line x2="26" y1="4" y2="4" '
        f"{_stroke(place)}/></svg> {escape(variant)}</span>"
        for place, variant in enumerate(variants)
    ]
    return f"<p>{' '.join(keys)}</p>"


def curve_svg(results: Results, metric: str, window: int) -> str:
    """One metric of all variants, averaged over seeds and over a window of steps; on a log scale if it is an error."""
    curves = {
        variant: (recorded_steps(next(iter(runs.values())), metric), _mean(runs.values(), metric, window))
        for variant, runs in results.items()
    }
    values = np.concatenate([mean for _, mean in curves.values()])
    log = not higher_is_better(metric) and bool((values > 0).any())
    shown = values[values > 0] if log else values[np.isfinite(values)]
    low, high = _ends(shown, log)
    last = max(1, *(int(steps[-1]) for steps, _ in curves.values()))
    name = metric.replace("_", " ")
    told = f"{name} over the steps: " + ", ".join(f"{v} ends at {mean[-1]:.3g}" for v, (_, mean) in curves.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(told)}" font-family="sans-serif" '
        f'font-size="10" fill="currentColor"><title>{escape(told)}</title>'
        f'<text x="{_LEFT}" y="12" font-size="11">{escape(name)}{", log scale" if log else ""}</text>'
        f'<path d="M{_LEFT} {_ABOVE}V{_HEIGHT - _BELOW}H{_WIDTH - 4}" fill="none" stroke="#888"/>'
        f'<text x="{_LEFT - 4}" y="{_HEIGHT - _BELOW}" text-anchor="end">{low:.2g}</text>'
        f'<text x="{_LEFT - 4}" y="{_ABOVE + 8}" text-anchor="end">{high:.2g}</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 6}">0</text>'
        f'<text x="{_WIDTH - 4}" y="{_HEIGHT - 6}" text-anchor="end">step {last}</text>'
    ]
    scale = (math.log(low), math.log(high)) if log else (low, high)
    for place, (steps, mean) in enumerate(curves.values()):
        points = []
        for step, value in zip(_thin(steps), _thin(mean), strict=True):
            if not math.isfinite(value) or (log and value <= 0):
                continue
            height = ((math.log(value) if log else value) - scale[0]) / (scale[1] - scale[0])
            x, y = _LEFT + (_WIDTH - _LEFT - 4) * step / last, _HEIGHT - _BELOW - (_HEIGHT - _BELOW - _ABOVE) * height
            points.append(f"{x:.1f},{y:.1f}")
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" {_stroke(place)}/>')
        if len(points) == 1:
            at = points[0].split(",")
            parts.append(f'<circle cx="{at[0]}" cy="{at[1]}" r="3" fill="{COLORS[place % len(COLORS)]}"/>')
    return "".join([*parts, "</svg>"])


def _mean(runs: Iterable[Steps], metric: str, window: int) -> npt.NDArray[np.float64]:
    """Over seeds, as far as all of them have come."""
    curves = [rolling_mean(steps, metric, window) for steps in runs]
    shortest = min(map(len, curves))
    mean: npt.NDArray[np.float64] = np.mean([curve[:shortest] for curve in curves], axis=0)
    return mean


def _thin(values: npt.NDArray[np.generic]) -> list[float]:
    """At most one point per pixel, the last one among them."""
    chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), _WIDTH)).astype(int))
    return [float(value) for value in values[chosen]]


def _ends(values: npt.NDArray[np.float64], log: bool) -> tuple[float, float]:
    """The ends of an axis that holds these values, never the same."""
    low, high = (float(values.min()), float(values.max())) if len(values) else (1.0, 1.0)
    if low < high:
        return low, high
    return (low / 2, low * 2) if log else (low - 0.5, low + 0.5)


def _stroke(place: int) -> str:
    dash = _DASHES[place % len(_DASHES)]
    return f'stroke="{COLORS[place % len(COLORS)]}" stroke-width="1.8"' + (
        f' stroke-dasharray="{dash}"' if dash else ""
    )
