"""Exact averages in finitely many rounds: matchings of rings, tori and hypercubes, and Base-(k+1) graphs.

Base-(k+1) graphs average any number of nodes (Takezawa et al., NeurIPS 2023). A round is a list of weighted edges
(i, j, w); the loops take the rest. A node has at most k edges in every round, and the matrices of all rounds multiply
to J = 𝟏𝟏ᵀ/n. There are three constructions, of which the shortest is used:

*Hyper-hypercube*, if n = n_1 ⋯ n_L with all n_l ≤ k + 1. Write the nodes' numbers in digits of the bases n_l. In round
l, nodes that differ in digit l only average: complete graphs of n_l nodes with weights 1/n_l.

*Simple*, for every n: n = Σ_l a_l (k+1)^{p_l} with p_1 > p_2 > … and 1 ≤ a_l ≤ k, its digits in base k + 1. Group V_l
has a_l blocks of (k+1)^{p_l} nodes.
  1. Every group averages as a hyper-hypercube, all groups at once: m = p_1 rounds, one more if a_1 > 1. The others
     finish by then, since p_l + 1 ≤ p_1.
  2. Round m + l: the nodes after V_l, fewer than a block has, are paired with distinct nodes of each block of V_l,
     with weights w / a_l, w = |V_l| / (|V_l| + |later|). A later node then holds (1 − w) x + w mean(V_l), so the later
     nodes together have the mean of all, and so has V_l, since the sum over both is unchanged. Groups after V_l stay
     uniform, and the blocks of V_l stay equal to each other.
  3. From then on V_l is on its own, and each of its blocks averages: p_l rounds. The last group is finished.
V_l is finished after m + l + p_l rounds, and p_l ≤ p_1 − l + 1, so m + p_1 + 1 ≤ 2 ⌊log_{k+1} n⌋ + 2 rounds suffice.

*Composed*: n = p q with p the largest divisor without prime factors above k + 1. Each of p groups of q nodes runs the
simple construction; then the nodes of the same number in all groups run a hyper-hypercube of p. With q = 1 this is the
hyper-hypercube of all nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations
from typing import TypeAlias

import numpy as np

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.graphs.matchings import dimensions
from mixwise.graphs.spec import GraphLike, as_graph
from mixwise.mixing.matrix import MixingMatrix
from mixwise.mixing.weights import from_edge_weights

Round: TypeAlias = list[tuple[int, int, float]]


# --- on the edges of a given graph ---
def exact_average(graph: GraphLike) -> tuple[MixingMatrix, ...] | None:
    """Matchings with weights whose product is J = 𝟏𝟏ᵀ/n; None for graphs without a known sequence.

    On a ring with an even number n of nodes, n/2 matchings, even edges and odd edges in turn, are an exact average if
    the weight of the pairs in round k = 1, …, n/2 is

        w_k = s_k / (s_1 + s_k),   s_k = sin((2k − 1) π / n)

    (proof: docs/decisions/0018-exact-averages-on-rings.md). Half of a pair's difference is exchanged in the first and
    in the last round, more in between. No method is faster, since information needs n/2 rounds to reach the opposite
    node. A path of n nodes is a ring of 2n, folded: n matchings. Products of even rings and paths (tori, grids,
    hypercubes) average along one dimension after the other; matchings of different dimensions commute, and so do the
    averages.

    Args:
        graph: an undirected graph, numbered in any way.

    >>> from mixwise.graphs import ring
    >>> [round(W[0, 0], 3) for W in exact_average(ring(6))]
    [0.5, 0.333, 0.5]
    """
    graph = as_graph(graph)
    along = dimensions(graph) if graph.is_connected else None
    if along is None:
        return None
    rounds = []
    for matchings in along:
        n = _size_of_rings(matchings)
        if n is None:
            return None
        for k in range(max(1, n // 2)):
            s, first = math.sin((2 * k + 1) * math.pi / n), math.sin(math.pi / n)
            pairs = matchings[k % len(matchings)]
            rounds.append(from_edge_weights(pairs, np.full(len(pairs.edge_array), s / (first + s))))
    return tuple(rounds)


def _size_of_rings(matchings: tuple[Graph, ...]) -> int | None:
    """The nodes of the rings that two matchings form, or twice those of the paths; None if not all are alike."""
    if len(matchings) == 1:  # single edges
        return 2
    union = Graph(matchings[0].n, np.concatenate([matching.edge_array for matching in matchings]))
    sizes, ends = {len(nodes) for nodes in union.components}, union.degrees.count(1)
    if len(matchings) > 2 or len(sizes) > 1 or ends not in (0, 2 * len(union.components)):
        return None
    return sizes.pop() * (2 if ends else 1)


# --- Base-(k+1) graphs ---
def base_graph(n: int, peers: int) -> tuple[MixingMatrix, ...]:
    """Symmetric mixing matrices with at most `peers` = k neighbors per node whose product is 𝟏𝟏ᵀ/n.

    There are at most 2 ⌊log_{k+1} n⌋ + 2 of them, for every n and 1 ≤ k < n.

    >>> len(base_graph(8, 1)), len(base_graph(6, 1)), len(base_graph(5, 4))
    (3, 4, 1)
    """
    if n != int(n) or peers != int(peers) or not 1 <= peers < n:
        raise MixingError(f"n = {n}, peers = {peers}; a Base-(k+1) graph needs whole numbers with 1 ≤ peers < n")
    n, k = int(n), int(peers)
    rounds = min(_composed(range(n), k), _simple(range(n), k), key=len)  # the first of the shortest
    weights = [{(i, j): w for i, j, w in edges} for edges in rounds]
    return tuple(from_edge_weights(Graph(n, list(of_round)), of_round) for of_round in weights)


# --- the three constructions ---
def _hyper_hypercube(nodes: Sequence[int], factors: Iterable[int]) -> list[Round]:
    rounds, stride = [], 1
    for size in factors:
        starts = [first for first in range(len(nodes)) if first // stride % size == 0]
        cliques = [[nodes[first + digit * stride] for digit in range(size)] for first in starts]
        rounds.append([(i, j, 1 / size) for clique in cliques for i, j in combinations(clique, 2)])
        stride *= size
    return rounds


def _simple(nodes: Sequence[int], k: int) -> list[Round]:
    digits = _digits(len(nodes), k + 1)
    longest = digits[0][1] + (digits[0][0] > 1)
    timed: list[tuple[int, list[Round]]] = []  # runs of rounds, each with the round in which it starts
    rest = nodes
    for step, (count, power) in enumerate(digits):
        block = (k + 1) ** power
        group, later = rest[: count * block], rest[count * block :]
        blocks = [group[a * block : (a + 1) * block] for a in range(count)]
        timed.append((0, _hyper_hypercube(group, [k + 1] * power + [count] * (count > 1))))
        if later:
            w = len(group) / len(rest) / count
            pairs = [(members[a], j, w) for a, j in enumerate(later) for members in blocks]
            timed.append((longest + step, [pairs]))
            timed += [(longest + step + 1, _hyper_hypercube(members, [k + 1] * power)) for members in blocks]
        rest = later
    return _together(timed)


def _composed(nodes: Sequence[int], k: int) -> list[Round]:
    smooth = 1
    for prime in range(2, k + 2):  # a composite number divides nothing that its primes have left
        while len(nodes) // smooth % prime == 0:
            smooth *= prime
    q = len(nodes) // smooth
    inside = _together([(0, _simple(nodes[start : start + q], k)) for start in range(0, len(nodes), q)])
    across = [(len(inside), _hyper_hypercube(nodes[a::q], _factors(smooth, k + 1) or ())) for a in range(q)]
    return _together([(0, inside), *across])


# --- building blocks ---
def _together(timed: Iterable[tuple[int, list[Round]]]) -> list[Round]:
    """Merge runs of rounds on disjoint nodes, each given with the round in which it starts."""
    merged: list[Round] = []
    for start, rounds in timed:
        merged += [[] for _ in range(start + len(rounds) - len(merged))]
        for number, edges in enumerate(rounds, start):
            merged[number] += edges
    return merged


@lru_cache(maxsize=4096)
def _factors(n: int, largest: int) -> tuple[int, ...] | None:
    """The fewest factors of n, none above `largest`; None if n has a larger prime factor."""
    if n == 1:
        return ()
    found = []
    for factor in range(min(n, largest), 1, -1):
        if n % factor == 0 and (rest := _factors(n // factor, factor)) is not None:
            found.append((factor, *rest))
    return min(found, key=len, default=None)


def _digits(n: int, base: int) -> list[tuple[int, int]]:
    """(a, p) with n = Σ a base^p, highest power first, zeros left out."""
    digits, power = [], 0
    while n:
        n, digit = divmod(n, base)
        digits += [(digit, power)] if digit else []
        power += 1
    return digits[::-1]
