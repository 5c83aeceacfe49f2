"""D-Cliques: cliques of nodes whose labels together look like the whole data set (Bellet, Kermarrec, Lavoie, 2022).

Legend: P (n, classes) the label proportions of the nodes, all nodes counting the same; p_C the mean of P over clique C,
p the mean over all nodes. The skew of a clique is ‖p_C − p‖₁, from 0 (unbiased) to 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from mixwise.errors import GraphError
from mixwise.graphs.graph import Graph, IntArray
from mixwise.seeding import numpy_generator

Between: TypeAlias = Literal["ring", "full"]
FloatArray: TypeAlias = npt.NDArray[np.float64]

_ROUNDING = 1e-12  # a smaller gain may be rounding


@dataclass(frozen=True)
class Cliques:
    """Disjoint cliques that cover all nodes, and the graph of the edges inside and between them."""

    graph: Graph
    cliques: tuple[tuple[int, ...], ...]


def d_cliques(label_counts: npt.ArrayLike, size: int, seed: int = 0, between: Between = "ring") -> Cliques:
    """Cliques of low skew, joined to one graph.

        minimize  Σ_C ‖p_C − p‖₁   over the divisions of the nodes into cliques of `size` nodes (a local minimum)

    Starting from random cliques, two nodes of two cliques are swapped, best pair first, as long as that lowers the sum
    of their skews. A sweep over all pairs of cliques costs O(n² · classes). If every node has one label and perfect
    cliques of equal size exist, they are found: a clique with too many of label a and too few of b, and one with too
    many of b, have a swap that helps (a node of a for one of b: three counts get better, at most one gets worse).

    For decoupled mixing (the paper's Appendix): W_g = `mixing.clique_averaging(cliques, graph)` for the updates, and
    W_p = `mixing.metropolis_hastings(graph)` for the parameters.

    Args:
        label_counts: (n, classes), the number of samples of each label at each node, or the proportions.
        size: the nodes per clique; if it does not divide n, cliques are as equal as possible and no larger.
        seed: of the random cliques at the start.
        between: "ring": one edge from each clique to the next. "full": one edge between any two cliques. Edges are
            distributed evenly over the nodes of a clique.
    """
    C = _centered_proportions(label_counts)
    if size != int(size) or size < 1:
        raise GraphError(f"size = {size}; a clique has a whole number of nodes, at least 1")
    if between not in ("ring", "full"):
        raise GraphError(f'between = {between!r}; cliques are joined by a "ring" or in "full"')
    order = numpy_generator(seed, "d_cliques").permutation(len(C))
    cliques = np.array_split(order, -(-len(C) // int(size)))
    while sum([_best_swap(C, *pair) for pair in combinations(cliques, 2)]):
        pass  # until no swap lowers the skew
    groups = tuple(sorted(tuple(sorted(clique.tolist())) for clique in cliques))
    inside = [pair for group in groups for pair in combinations(group, 2)]
    return Cliques(Graph(len(C), inside + _between(groups, between)), groups)


def clique_skew(label_counts: npt.ArrayLike, cliques: Sequence[Sequence[int]]) -> float:
    """Σ_C ‖p_C − p‖₁: how far the cliques' labels are from those of all nodes together.

    >>> clique_skew([[5, 0], [0, 5], [9, 0], [0, 9]], [(0, 1), (2, 3)])
    0.0
    """
    C = _centered_proportions(label_counts)
    return float(sum(np.abs(C[list(clique)].mean(axis=0)).sum() for clique in cliques))


def _best_swap(C: FloatArray, one: IntArray, other: IntArray) -> bool:
    """Make the best swap between two cliques in place, if it helps; whether it did. C (n, classes): centered P."""
    moved = C[other][None, :, :] - C[one][:, None, :]  # (|one|, |other|, classes): the gain of the first clique
    first, second = C[one].sum(axis=0), C[other].sum(axis=0)
    skews = np.abs(first + moved).sum(axis=2) / len(one) + np.abs(second - moved).sum(axis=2) / len(other)
    now = float(np.abs(first).sum() / len(one) + np.abs(second).sum() / len(other))
    i, j = np.unravel_index(int(skews.argmin()), skews.shape)
    if not skews[i, j] < now - _ROUNDING:
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


def _centered_proportions(label_counts: npt.ArrayLike) -> FloatArray:
    """C (n, classes), the rows of P without their mean, from label counts, checked."""
    counts = np.asarray(label_counts, dtype=np.float64)
    if counts.ndim != 2 or 0 in counts.shape:
        raise GraphError(f"expected one row of label counts per node, (n, classes); got shape {counts.shape}")
    bad = np.argwhere(~(np.isfinite(counts) & (counts >= 0)))
    if len(bad):
        i, j = bad[0]
        raise GraphError(f"node {i} has {counts[i, j]} samples of label {j}; counts are finite and not negative")
    totals = counts.sum(axis=1, keepdims=True)
    if not totals.all():
        raise GraphError(f"node {totals.argmin()} has no samples, so no label shares; give it data or leave it out")
    P = counts / totals
    C: FloatArray = P - P.mean(axis=0)
    return C
