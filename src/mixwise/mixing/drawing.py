"""A mixing matrix as a picture: a heat map for notebooks and pages."""

from __future__ import annotations

from html import escape

from mixwise.mixing.matrix import MixingMatrix

DRAWN = 128  # larger matrices have cells too small to see
_NUMBERED = 20  # up to here the weights are written into the cells
_SHADES = ((255, 255, 255), (191, 220, 240), (92, 160, 208), (0, 97, 154), (0, 42, 79))  # of one blue: readable in gray


def heat_map_svg(W: MixingMatrix, size: int = 360) -> str:
    """W as a self-contained SVG: row i is what node i sends, column j what node j hears; the darker, the larger."""
    margin = 22
    cell = min(34.0, (size - margin) / W.n)
    side = margin + cell * W.n + 1
    told = f"{W!r}; rows send, columns hear"
    every = max(1, round(14 / cell))  # of the node numbers beside it
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{side:.0f}" height="{side:.0f}" role="img" '
        f'viewBox="0 0 {side:.0f} {side:.0f}" aria-label="{escape(told)}" font-family="sans-serif" font-size="10" '
        f'text-anchor="middle"><title>{escape(told)}</title><rect width="100%" height="100%" fill="white"/>'
    ]
    for node in range(0, W.n, every):
        at = margin + cell * (node + 0.5)
        parts.append(f'<text x="{at:.1f}" y="{margin - 8}" fill="#555">{node}</text>')
        parts.append(f'<text x="{margin - 11}" y="{at:.1f}" dy=".35em" fill="#555">{node}</text>')
    pattern = W.graph.pattern
    for i, j, weight in zip(pattern.rows.tolist(), pattern.cols.tolist(), W.weights.tolist(), strict=True):
        x, y = margin + cell * j, margin + cell * i
        parts.append(
            f'<g><title>W[{i}, {j}] = {weight:.4g}</title><rect x="{x:.1f}" y="{y:.1f}" width="{cell:.1f}" '
            f'height="{cell:.1f}" fill="{shade(weight)}" stroke="#ddd" stroke-width=".5"/>'
        )
        if W.n <= _NUMBERED and weight >= 0.005:
            ink = "white" if weight > 0.5 else "#222"
            shown = f"{weight:.2f}".removeprefix("0")
            parts.append(f'<text x="{x + cell / 2:.1f}" y="{y + cell / 2:.1f}" dy=".35em" fill="{ink}">{shown}</text>')
        parts.append("</g>")
    parts.append(f'<rect x="{margin}" y="{margin}" width="{side - margin - 1:.1f}" height="{side - margin - 1:.1f}" ')
    return "".join([*parts, 'fill="none" stroke="#999"/></svg>'])


def shade(weight: float) -> str:
    """White for 0, dark blue for 1."""
    place = min(1.0, max(0.0, weight)) * (len(_SHADES) - 1)
    low = min(int(place), len(_SHADES) - 2)
    mixed = (round(a + (b - a) * (place - low)) for a, b in zip(_SHADES[low], _SHADES[low + 1], strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)
