"""Weighted sums of rows: Σ_i w_ij x_i for each receiver j, the arithmetic of a gossip step.

Senders are taken in ascending order, and every product and every sum is rounded by itself. Matrix products and fused
multiply-adds would be faster, but their last bits depend on the processor, on the number of threads and on the rows
beside them. These sums have the same bits on every processor, in a simulation and in any number of processes.

Legend: X (n, d) rows; w_ij the weight of sender i at receiver j; k_j how many senders receiver j has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.mixing.matrix import FloatArray

Array: TypeAlias = npt.NDArray[Any]
Row = TypeVar("Row", torch.Tensor, Array)
Terms: TypeAlias = tuple[tuple[int, float], ...]  # position and weight of the rows that are added up

_BLOCK = 1 << 17  # numbers of one block of columns that is added up before the next: it stays in the cache
_LONG = 1 << 12  # numbers; rows from here on are added one by one, shorter ones of all receivers at once


def sum_terms(sources: Sequence[Row], terms: Terms, out: Row, product: Row) -> None:
    """Write Σ w x into `out`; `product` is memory of the same shape, and neither is one of the sources."""
    if not terms:
        out[:] = 0
        return
    multiply: Any = torch.mul if isinstance(out, torch.Tensor) else np.multiply
    (first, weight), *others = terms
    multiply(sources[first], weight, out=out)
    for position, weight in others:
        out += multiply(sources[position], weight, out=product)


def as_array(X: torch.Tensor) -> Array | None:
    """X as a NumPy array in the same memory, or None where NumPy cannot reach it.

    A call of NumPy takes a fifth of the time of one of torch, and products and sums of numbers have the same bits.
    """
    return X.detach().numpy() if X.device.type == "cpu" and X.dtype != torch.bfloat16 else None


def sum_in_place(sources: Sequence[torch.Tensor], terms: Terms) -> torch.Tensor:
    """Σ w x in the memory of the sources, and if sources[0] is one of them, there."""
    total: torch.Tensor | None = None
    for position, weight in terms:
        product = sources[position].mul_(weight)
        if total is not None:  # a + b and b + a have the same bits
            product = product.add_(total) if position == 0 else total.add_(product)
        total = product
    return sources[0].zero_() if total is None else total


def block_width(d: int, rows: int) -> int:
    """How many of d columns make a block of `rows` rows that stays in the cache."""
    return min(d, max(1, _BLOCK // max(rows, 1)))


def column_blocks(d: int, rows: int) -> list[slice]:
    """The columns, block by block."""
    width = block_width(d, rows)
    return [slice(start, min(start + width, d)) for start in range(0, d, width)] if d else []


def mix_rows(X: torch.Tensor, graph: Graph, weights: FloatArray, out: torch.Tensor, *, add: bool = False) -> None:
    """Write Wᵀ X into `out`, which may be X itself, or add it to what is there.

    Args:
        X: rows (n, d).
        graph: the communication graph.
        weights: w_ij on the entries of `graph.pattern`; they need not be those of a mixing matrix.
        out: where the sums go.
        add: whether they are added.
    """
    (n, d), in_place, array = X.shape, out.data_ptr() == X.data_ptr(), as_array(X)
    if d >= _LONG:
        _sum_long_rows(X, graph, weights, out, add)
    elif array is not None and (n + len(graph.arcs.senders)) * d <= _BLOCK:
        mixed, target = _sums_of_few_rows(array, graph, weights), out.detach().numpy()
        target[:] = target + mixed if add else mixed
    elif is_matching(graph) and not add:
        _average_pairs(out if in_place else out.copy_(X), graph, weights)
    else:
        _sums_of_many_rows(X.clone() if in_place else X, graph, weights, out, add)


@np.errstate(over="ignore", invalid="ignore")  # rows that are only measured need not be finite
def _sums_of_few_rows(X: Array, graph: Graph, weights: FloatArray) -> Array:
    """Wᵀ X: one step of summation for all receivers together."""
    order = _order(graph)
    products = X[order.senders] * weights[order.entries, None].astype(X.dtype)
    sums: Array = products[: graph.n]
    for first, last in pairwise(order.bounds[1:]):
        sums[: last - first] += products[first:last]
    return sums if order.ranks is None else sums[order.ranks]


def _sums_of_many_rows(X: torch.Tensor, graph: Graph, weights: FloatArray, out: torch.Tensor, add: bool) -> None:
    """The same, some receivers at a time: their sums stay in the cache."""
    pattern, device = graph.pattern, X.device
    senders = torch.from_numpy(pattern.rows[pattern.by_column]).to(device)
    w = torch.from_numpy(weights[pattern.by_column]).to(X)[:, None]
    count = np.bincount(pattern.cols, minlength=graph.n)
    receivers = np.argsort(-count, kind="stable")  # those that still have a sender are the first of every step
    starts = torch.from_numpy((np.cumsum(count) - count)[receivers]).to(device)
    reached = np.searchsorted(-count[receivers], -np.arange(count.max()), side="left").tolist()
    places, size = torch.from_numpy(receivers).to(device), max(1, _BLOCK // X.shape[1])
    for first in range(0, graph.n, size):
        here, at = places[first : first + size], starts[first : first + size]
        sums = X.index_select(0, senders[at]).mul_(w[at])  # every receiver has its loop
        for step, last in enumerate(reached[1:], 1):
            entries = at[: max(0, last - first)] + step
            sums[: len(entries)].add_(X.index_select(0, senders[entries]).mul_(w[entries]))
        if add:
            out.index_add_(0, here, sums)
        else:
            out.index_copy_(0, here, sums)


def is_matching(graph: Graph) -> bool:
    """Whether no node has more than one neighbor."""
    return not graph.directed and np.bincount(graph.edge_array.ravel(), minlength=1).max() <= 1


def _average_pairs(X: torch.Tensor, graph: Graph, weights: FloatArray) -> None:
    """The same for a matching, in place: some pairs at a time."""
    indptr, d = graph.pattern.indptr, X.shape[1]
    alone = np.diff(indptr) == 1
    if (changed := np.flatnonzero(alone & (weights[indptr[:-1]] != 1))).size:  # the loop of a node is its only entry
        X[changed] *= torch.from_numpy(weights[indptr[changed]]).to(X)[:, None]
    ends = graph.edge_array
    # The entries of a pair i < j: (i, i), (i, j) and (j, i), (j, j).
    w = torch.from_numpy(weights[indptr[ends][:, :, None] + [0, 1]]).to(X)
    even, pairs, size = bool((w == 0.5).all()), torch.tensor(ends, device=X.device), max(1, _BLOCK // d)
    for first in range(0, len(pairs), size):
        i, j = pairs[first : first + size].T.contiguous()
        part = w[first : first + size, :, :, None]
        x, y = X.index_select(0, i), X.index_select(0, j)
        if not even:
            X.index_copy_(0, j, (x * part[:, 0, 1]).add_(y * part[:, 1, 1]))
        mixed = x.mul_(part[:, 0, 0]).add_(y.mul_(part[:, 1, 0]))
        X.index_copy_(0, i, mixed)
        if even:
            X.index_copy_(0, j, mixed)


def _sum_long_rows(X: torch.Tensor, graph: Graph, weights: FloatArray, out: torch.Tensor, add: bool) -> None:
    """The same, some columns at a time and one receiver after the other: each sum stays in the cache."""
    (n, d), rounded = X.shape, torch.tensor(weights, dtype=X.dtype)
    equal = not add and bool((rounded == rounded[0]).all())
    terms = () if equal else _terms_of(graph, weights)
    memory = torch.empty(n + 1, block_width(d, n), dtype=X.dtype, device=X.device)
    tensors = (X, out, memory)
    rows, mixed, places = (tensor if (array := as_array(tensor)) is None else array for tensor in tensors)
    with np.errstate(over="ignore", invalid="ignore"):  # rows that are only measured need not be finite
        for columns in column_blocks(d, n):
            block, targets = rows[:, columns], mixed[:, columns]
            sums, product = places[:n, : targets.shape[1]], places[n, : targets.shape[1]]
            if equal:
                _sum_products(block, float(weights[0]), graph, targets, sums)
                continue
            sources = list(block)
            for total, heard in zip(sums, terms, strict=True):
                sum_terms(sources, heard, total, product)
            for target, total in zip(targets, sums, strict=True):
                target[:] = target + total if add else total


def _sum_products(X: Any, weight: float, graph: Graph, out: Any, products: Any) -> None:
    """The sums of a block where all weights are equal, as on a ring: w x is taken once, not once per receiver."""
    multiply, plus = (torch.mul, torch.add) if isinstance(X, torch.Tensor) else (np.multiply, np.add)
    multiply(X, weight, out=products)
    for receivers, (first, *others) in _runs(graph):
        total, target = products[first], out[receivers]
        for senders in others:
            total = plus(total, products[senders], out=target)
        if not others:
            target[:] = total


@lru_cache(maxsize=64)
def _runs(graph: Graph) -> list[tuple[slice, list[slice]]]:
    """Runs of receivers and of their senders, each one further than that of the receiver before, as on a ring.

    A run is summed in one call; a call for each receiver would take as long as its sum.
    """
    senders = graph.pattern.rows[graph.pattern.by_column]
    heard = np.split(senders, np.cumsum(np.bincount(graph.pattern.cols, minlength=graph.n))[:-1])
    starts = [j for j in range(graph.n) if j == 0 or not np.array_equal(heard[j], heard[j - 1] + 1)]
    return [
        (slice(first, last), [slice(int(i), int(i) + last - first) for i in heard[first]])
        for first, last in pairwise([*starts, graph.n])
    ]


def _terms_of(graph: Graph, weights: FloatArray) -> tuple[Terms, ...]:
    """Senders and weights of each receiver."""
    pattern, by_column = graph.pattern, graph.pattern.by_column
    return terms_by_receiver(pattern.cols[by_column], range(graph.n), pattern.rows[by_column], weights[by_column])


def terms_by_receiver(receivers: IntArray, nodes: range, positions: IntArray, weights: FloatArray) -> tuple[Terms, ...]:
    """Group positions and weights, sorted by receiver, for each of these receivers."""
    pairs = list(zip(positions.tolist(), weights.tolist(), strict=True))
    bounds = np.searchsorted(receivers, np.arange(nodes.start, nodes.stop + 1)).tolist()
    return tuple(tuple(pairs[first:last]) for first, last in pairwise(bounds))


class _Order(NamedTuple):
    """The entries of a pattern as steps of summation: the first sender of every receiver, then the second, …

    Receivers with more senders come first, so that those that still have one are the first rows of every step.
    """

    entries: IntArray  # (A + n,)  entries of the pattern
    senders: IntArray  # (A + n,)  their senders
    bounds: list[int]  # where each step starts
    ranks: IntArray | None  # (n,)  where each receiver is; None if all are in their places


@lru_cache(maxsize=64)
def _order(graph: Graph) -> _Order:
    by_column = graph.pattern.by_column
    senders, receivers = graph.pattern.rows[by_column], graph.pattern.cols[by_column]
    count = np.bincount(receivers, minlength=graph.n)
    step = np.arange(len(receivers)) - np.repeat(np.cumsum(count) - count, count)
    receiver_at = np.argsort(-count, kind="stable")
    ranks = np.empty_like(receiver_at)
    ranks[receiver_at] = np.arange(graph.n)
    order = np.lexsort((ranks[receivers], step))
    bounds = [0, *np.cumsum(np.bincount(step)).tolist()]
    in_place = np.array_equal(ranks, np.arange(graph.n))
    return _Order(by_column[order], senders[order].copy(), bounds, None if in_place else ranks)
