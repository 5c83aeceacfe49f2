"""D-Cliques: groups of nodes whose labels together look like the whole data set (Bellet, Kermarrec, Lavoie, 2022).

Legend: P (n, classes) the label shares of the nodes, every node counting the same; p_C the mean of P over clique C, p
the mean over all nodes. The skew of a clique is ‖p_C − p‖₁, from 0 (unbiased) to 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from mixwise.errors import GraphError
from mixwise.graphs.graph import Graph
from mixwise.seeding import numpy_generator

Between: TypeAlias = Literal["ring", "full"]
FloatArray = npt.NDArray[np.float64]

_HELPS = 1e-12  # a smaller gain may be rounding


@dataclass(frozen=True)
class Cliques:
    """Disjoint cliques that cover all nodes, and the graph of their edges and of those between them."""

    graph: Graph
    cliques: tuple[tuple[int, ...], ...]


def d_cliques(label_counts: npt.ArrayLike, size: int, seed: int = 0, between: Between = "ring") -> Cliques:
    """Cliques of low skew, by greedy swaps, joined to one graph.

    Starts from random cliques and swaps two nodes of two cliques, the best pair first, as long as that lowers the sum
    of their skews. A sweep over all pairs of cliques costs O(n² · classes). If every node has one label and perfect
    cliques of equal size exist, they are found: a clique with too many of label a and too few of b, and one with too
    many of b, have a swap that helps (a node of a for one of b: three counts get better, at most one gets worse).

    For decoupled mixing (the paper's Appendix): W_g = `mixing.clique_averaging(cliques, graph)` for the updates, and
    W_p = `mixing.metropolis_hastings(graph)` for the parameters.

    Args:
        label_counts: (n, classes), how many samples of each label a node holds, or the shares.
        size: nodes of a clique; if n is no multiple of it, cliques are as equal as possible and no larger.
        seed: names the random cliques of the start.
        between: "ring": each clique has one edge to the next. "full": one edge between any two cliques. Edges are
            spread evenly over the nodes of a clique.
    """
    shares = _shares(label_counts)
    if size != int(size) or size < 1:
        raise GraphError(f"size = {size}; a clique has a whole number of nodes, at least 1")
    if between not in ("ring", "full"):
        raise GraphError(f'between = {between!r}; cliques are joined by a "ring" or in "full"')
    order = numpy_generator(seed, "d_cliques").permutation(len(shares))
    cliques = np.array_split(order, -(-len(shares) // int(size)))
    _swap_greedily(shares - shares.mean(axis=0), cliques)
    groups = tuple(sorted(tuple(sorted(int(i) for i in clique)) for clique in cliques))
    inside = [pair for group in groups for pair in combinations(group, 2)]
    return Cliques(Graph(len(shares), inside + _between(groups, between)), groups)


def clique_skew(label_counts: npt.ArrayLike, cliques: Sequence[Sequence[int]]) -> float:
    """Σ_C ‖p_C − p‖₁: how far the cliques' labels are from those of all nodes together.

    >>> clique_skew([[5, 0], [0, 5], [9, 0], [0, 9]], [(0, 1), (2, 3)])
    0.0
    """
    shares = _shares(label_counts)
    centered = shares - shares.mean(axis=0)
    return float(sum(np.abs(centered[list(clique)].mean(axis=0)).sum() for clique in cliques))


def _swap_greedily(C: FloatArray, cliques: list[npt.NDArray[np.int64]]) -> None:
    """Swap nodes of two cliques in place until no swap lowers the sum of their skews; C: the centered shares."""
    pairs = list(combinations(range(len(cliques)), 2))
    unchanged = 0
    while unchanged < len(pairs):
        for a, b in pairs:
            unchanged = 0 if _best_swap(C, cliques[a], cliques[b]) else unchanged + 1
            if unchanged >= len(pairs):
                break


def _best_swap(C: FloatArray, one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> bool:
    """Make the swap that helps most, if one does."""
    moved = C[other][None, :, :] - C[one][:, None, :]  # (|one|, |other|, classes): what the first clique gains
    first, second = C[one].sum(axis=0), C[other].sum(axis=0)
    skews = np.abs(first + moved).sum(axis=2) / len(one) + np.abs(second - moved).sum(axis=2) / len(other)
    now = float(np.abs(first).sum() / len(one) + np.abs(second).sum() / len(other))
    i, j = np.unravel_index(int(skews.argmin()), skews.shape)
    if not skews[i, j] < now - _HELPS:
        return False
    one[i], other[j] = other[j], one[i]
    return True


def _between(groups: tuple[tuple[int, ...], ...], between: Between) -> list[tuple[int, int]]:
    """One edge per pair of joined cliques, at the members that have the fewest such edges so far."""
    count = len(groups)
    joined = list(combinations(range(count), 2))
    if between == "ring":
        joined = [(a, (a + 1) % count) for a in range(count if count > 2 else count - 1)]
    used = {i: 0 for group in groups for i in group}
    edges = []
    for a, b in joined:
        i, j = (min(groups[g], key=lambda node: (used[node], node)) for g in (a, b))
        used[i] += 1
        used[j] += 1
        edges.append((i, j))
    return edges


def _shares(label_counts: npt.ArrayLike) -> FloatArray:
    counts = np.asarray(label_counts, dtype=np.float64)
    if counts.ndim != 2 or 0 in counts.shape:
        raise GraphError(f"expected one row of label counts per node, (n, classes); got shape {counts.shape}")
    bad = ~(np.isfinite(counts) & (counts >= 0))
    if bad.any():
        i, j = np.argwhere(bad)[0]
        raise GraphError(f"node {i} has {counts[i, j]} samples of label {j}; counts are finite and not negative")
    totals = counts.sum(axis=1)
    if not totals.all():
        i = int(np.flatnonzero(totals == 0)[0])
        raise GraphError(f"node {i} has no samples, so its labels have no shares; give it data or leave it out")
    shares: FloatArray = counts / totals[:, None]
    return shares
