"""Makes the pictures of the documentation, docs/images/method-*.svg: python docs/figures.py

Everything in them is computed here, with the numbers of the tutorial.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch, Wedge

import mixwise as mw
from mixwise.graphs.drawing import layout
from mixwise.mixing import MixingMatrix, gram_matrix, metropolis_hastings, minimize_gme, relative_heterogeneity
from mixwise.sketch import CountSketch, GaussianSketch

IMAGES = Path(__file__).parent / "images"
TYPES = ("#0072B2", "#E69F00", "#009E73")  # of Okabe and Ito's colors, for three types of data
ALTERNATING = np.arange(12) % 3
SHUFFLED = ALTERNATING[np.random.default_rng(3).permutation(12)]


def draw_mixing(panel: Axes, types: np.ndarray, W: MixingMatrix, title: str) -> None:
    """The graph: the rim of a node is its own type, the pie inside what one gossip step makes of it."""
    G = np.eye(3)[types]
    mixed = W.to_dense().T @ G
    spots = layout(W.graph)
    for i, j in W.graph.edges:
        weight = (W[i, j] + W[j, i]) / 2
        style = {"linewidth": 9 * weight, "color": "0.65"} if weight > 0.01 else {"linewidth": 0.8, "color": "0.8"}
        panel.plot(*spots[[i, j]].T, zorder=1, linestyle="-" if weight > 0.01 else ":", **style)
    for (x, y), kind, shares in zip(spots, types, mixed, strict=True):
        panel.add_patch(Circle((x, y), 0.085, color=TYPES[kind], zorder=2))
        panel.add_patch(Circle((x, y), 0.066, color="white", zorder=3))
        ends = 90 - 360 * np.concatenate([[0], np.cumsum(shares)])
        for color, start, stop in zip(TYPES, ends[1:], ends[:-1], strict=True):
            if stop - start > 0.5:
                panel.add_patch(Wedge((x, y), 0.056, start, stop, color=color, zorder=4, linewidth=0))
    left = relative_heterogeneity(G, W) / mw.mixing.heterogeneity(G)
    panel.set_title(f"{title}\n{abs(left):.0%} of the disagreement left")
    panel.set(xlim=(-0.12, 1.12), ylim=(1.12, -0.12), aspect="equal")
    panel.axis("off")


def three_types() -> Figure:
    """The tutorial in one picture."""
    ring, torus = mw.graphs.ring(12), mw.graphs.torus(3, 4)
    gram = gram_matrix(np.eye(3)[SHUFFLED])
    figure = Figure(figsize=(10.5, 5.8), layout="constrained")
    panels = figure.subplots(2, 3).ravel()
    draw_mixing(panels[0], ALTERNATING, metropolis_hastings(ring), "in turn, weights 1/3")
    draw_mixing(panels[1], SHUFFLED, metropolis_hastings(ring), "shuffled, weights 1/3")
    draw_mixing(panels[2], SHUFFLED, minimize_gme(gram, ring).W, "shuffled, fitted weights")
    draw_mixing(panels[3], SHUFFLED, metropolis_hastings(torus), "torus, weights 1/5")
    draw_mixing(panels[4], SHUFFLED, minimize_gme(gram, torus).W, "torus, fitted weights")
    draw_mixing(panels[5], SHUFFLED, minimize_gme(gram, torus, regularization=2.0).W, "torus, fitted, λ = 2")
    return figure


def gossip() -> Figure:
    """Numbers on a ring that come to their mean."""
    graph = mw.graphs.ring(12)
    X, W = np.zeros((12, 1)), metropolis_hastings(graph).to_dense()
    X[3] = 12.0
    figure = Figure(figsize=(10.5, 2.6), layout="constrained")
    for panel, rounds in zip(figure.subplots(1, 4, sharey=True), (0, 1, 4, 20), strict=True):
        panel.bar(range(12), (np.linalg.matrix_power(W.T, rounds) @ X)[:, 0], color=TYPES[0])
        panel.axhline(1, color="0.3", linewidth=1, linestyle="--")
        panel.set(
            title=f"after {rounds} gossip step{'s' * (rounds != 1)}", xlabel="node", yscale="symlog", ylim=(0, 14)
        )
        panel.set_yticks([0, 1, 4, 12], ["0", "1", "4", "12"])
        panel.set_xticks([0, 3, 6, 9])
    return figure


def one_round() -> Figure:
    """From updates to weights and back, for the shuffled ring."""
    graph = mw.graphs.torus(3, 4)
    stream = np.random.default_rng(0)
    U = stream.normal(size=(3, 400))[SHUFFLED] + 0.3 * stream.normal(size=(12, 400))
    S = CountSketch(40)(torch.from_numpy(U)).numpy()
    gram = gram_matrix(S)
    W = minimize_gme(gram, graph, regularization=0.02).W
    mixed = W.to_dense().T @ U
    figure = Figure(figsize=(10.5, 2.9), layout="constrained")
    panels = figure.subplots(1, 5, width_ratios=[2.4, 1.1, 1.2, 1.2, 2.4])
    pictures = (
        (U[:, :120], "updates U", "d numbers →", "RdBu", 3.0),
        (S, "sketches S", "k numbers →", "RdBu", 8.0),
        (gram, "Gram matrix Γ", "node", "RdBu", float(np.abs(gram).max())),
        (W.to_dense(), "best weights W", "hears", "Blues", 0.8),
        ((mixed - U.mean(0))[:, :120], "what is left: Wᵀ U − Ū", "d numbers →", "RdBu", 3.0),
    )
    for panel, (values, title, below, colors, scale) in zip(panels, pictures, strict=True):
        low = 0.0 if colors == "Blues" else -scale
        panel.imshow(values, cmap=colors, vmin=low, vmax=scale, aspect="auto", interpolation="nearest")
        panel.set(title=title, xlabel=below, xticks=[], yticks=[])
    panels[0].set_ylabel("node")
    panels[3].set_ylabel("sends")
    return figure


def two_goals() -> Figure:
    """Mixing error against consensus factor, as λ goes from 0 up."""
    graph = mw.graphs.torus(3, 4)
    G = np.eye(3)[SHUFFLED]
    points = []
    for strength in np.concatenate([[0], np.logspace(-3, 1.5, 40)]):
        W = minimize_gme(gram_matrix(G), graph, regularization=float(strength)).W
        left = relative_heterogeneity(G, W) / mw.mixing.heterogeneity(G)
        points.append((mw.mixing.consensus_factor(W), left, float(strength)))
    curve = np.array(points)
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    panel = figure.subplots()
    panel.plot(curve[:, 0], 100 * curve[:, 1], color=TYPES[0], marker=".", label="fitted weights, λ from 0 to 30")
    for at, offset in ((0, (-4, 8)), (31, (6, -10)), (len(curve) - 1, (-50, 0))):
        panel.annotate(f"λ = {curve[at, 2]:.2g}", curve[at, :2] * (1, 100), offset, textcoords="offset points")
    for marker, name, W in (
        ("s", "Metropolis-Hastings", metropolis_hastings(graph)),
        ("^", "optimal spectral gap", mw.mixing.optimal_gap(graph)),
    ):
        left = relative_heterogeneity(G, W) / mw.mixing.heterogeneity(G)
        panel.plot(mw.mixing.consensus_factor(W), 100 * left, marker, color="#D55E00", markersize=9, label=name)
    panel.set(xlabel="consensus factor p: how fast any rows agree", ylabel="disagreement of\nthese rows left, %")
    panel.grid(alpha=0.3, linewidth=0.5)
    panel.legend(fontsize=8)
    return figure


def sketches() -> Figure:
    """How far the inner products of sketches are from the exact ones."""
    dims = (5, 10, 20, 50, 100, 200, 500, 1000)
    U = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 20_000)))
    exact, size = U @ U.T, float((U**2).sum(1).max())
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    panel = figure.subplots()
    for color, marker, kind in ((TYPES[0], "o", CountSketch), (TYPES[1], "s", GaussianSketch)):
        errors = [
            np.mean([float((S @ S.T - exact).abs().max()) / size for S in (kind(k, seed=s)(U) for s in range(3))])
            for k in dims
        ]
        panel.loglog(dims, errors, marker=marker, color=color, label=kind.__name__)
    panel.loglog(dims, [errors[0] * (dims[0] / k) ** 0.5 for k in dims], ":", color="0.4", label="1/√k")
    panel.set(xlabel="k, numbers per node that travel (rows have 20,000)", ylabel="largest error\n/ largest ‖u‖²")
    panel.grid(alpha=0.3, linewidth=0.5)
    panel.legend(fontsize=8)
    return figure


def layers() -> Figure:
    """Who does what in one step."""
    figure = Figure(figsize=(10.5, 1.9), layout="constrained")
    panel = figure.subplots()
    boxes = (
        ("task", "batches, losses,\ngradients G"),
        ("optimizer", "torch.optim:\nX → X′, U = X − X′"),
        ("policy", "which weights?\na plan (W₁, W₂, …)"),
        ("algorithm", "what is mixed?\nX⁺ = Wᵀ X′ for D-SGD"),
        ("network", "moves rows: in memory,\nor between processes"),
        ("records", "loss, accuracy, p,\nGME, bytes"),
    )
    for place, (name, text) in enumerate(boxes):
        fill = "#e6f1f8" if name not in ("policy", "algorithm") else "#fdf1dc"
        panel.add_patch(
            FancyBboxPatch((place * 1.8, 0), 1.45, 1, boxstyle="round,pad=0.05", facecolor=fill, edgecolor="0.6")
        )
        panel.text(place * 1.8 + 0.725, 0.78, name, ha="center", va="center", fontweight="bold")
        panel.text(place * 1.8 + 0.725, 0.33, text, ha="center", va="center", fontsize=8)
        if place:
            panel.annotate("", (place * 1.8 - 0.06, 0.5), (place * 1.8 - 0.29, 0.5), arrowprops={"arrowstyle": "->"})
    panel.set(xlim=(-0.1, 10.6), ylim=(-0.1, 1.1))
    panel.axis("off")
    return figure


FIGURES = {f.__name__.replace("_", "-"): f for f in (gossip, three_types, one_round, two_goals, sketches, layers)}


def main() -> None:
    """Make them all; the same bytes each time."""
    IMAGES.mkdir(exist_ok=True)
    for name, make in FIGURES.items():
        with rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 9, "font.family": "sans-serif"}):
            text = io.StringIO()
            make().savefig(text, format="svg", metadata={"Date": None})
        # Two decimals are finer than a pixel, and half of the bytes.
        (IMAGES / f"method-{name}.svg").write_text(re.sub(r"(\d\.\d\d)\d+", r"\1", text.getvalue()), "utf-8")


if __name__ == "__main__":
    main()
