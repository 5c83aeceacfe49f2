"""A mixing matrix as a heat map."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixwise.mixing.matrix import MixingMatrix

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_NODES = 300  # the cells of a larger matrix are too small to see
_MAX_NUMBERED = 20  # nodes; up to here the weights are written into the cells


def matrix_figure(W: MixingMatrix) -> Figure:
    """W as a matplotlib figure: row i is what node i sends, column j what node j receives; darker is larger."""
    from matplotlib.colors import PowerNorm  # slow to import, and only figures need it
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4.4), layout="constrained")
    panel = figure.subplots()
    norm = PowerNorm(0.5, vmin=0, vmax=1)  # small weights stay visible
    figure.colorbar(panel.imshow(W.to_dense(), cmap="Blues", norm=norm), shrink=0.8)
    panel.set(xlabel="receiver", ylabel="sender")
    panel.locator_params(integer=True)
    if W.n <= _MAX_NUMBERED:
        pattern = W.graph.pattern
        for i, j, weight in zip(pattern.rows.tolist(), pattern.cols.tolist(), W.weights.tolist(), strict=True):
            if weight >= 0.005:
                color = "white" if weight > 0.4 else "black"
                text = f"{weight:.2f}".removeprefix("0")
                panel.text(j, i, text, ha="center", va="center", fontsize=7, color=color)
    return figure
