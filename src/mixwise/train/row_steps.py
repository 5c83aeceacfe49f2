"""An optimizer's step on long rows, taken row by row.

Element by element it is the same step. But what the optimizer needs for a moment is one row long, a row's values do not
depend on which rows come with it, and rows that are kept in a shorter precision than that in which is computed are
lengthened, stepped and rounded one at a time.

Legend: X, G (m, d); a block of columns (m, c), one per parameter of the optimizer; an entry of its state (m, c) too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mixwise.tasks.rounding import round_at_random

# From here on a row is long: what a step of its own costs, about 0.1 ms, is little beside it.
LONG = 1 << 20


def step_rows(
    optimizer: torch.optim.Optimizer,
    blocks: Sequence[torch.nn.Parameter],
    columns: Sequence[tuple[int, int]],
    X: torch.Tensor,
    G: torch.Tensor,
    precision: torch.dtype,
    draws: Callable[[int], torch.Generator],
) -> None:
    """One step of the optimizer, in place.

    Args:
        optimizer: of the blocks.
        blocks: the parameters, views of the columns of X.
        columns: (start, stop) of each block.
        X, G: rows and gradients.
        precision: in which is computed.
        draws: the generator of the roundings of row i, asked for if X is kept in a shorter precision.
    """
    states: list[dict[str, Any]] = [optimizer.state.pop(block, {}) for block in blocks]
    before = [dict(state) for state in states]  # empty at the first step, for every row
    numbers: list[dict[str, Any]] = [{} for _ in blocks]  # what is not one entry per coordinate, such as the step
    for i in range(len(X)):
        row = slice(i, i + 1)
        for block, (first, last), known in zip(blocks, columns, before, strict=True):
            block.grad = None  # it may have another precision than what comes now
            block.data = X[row, first:last].to(precision)
            block.grad = G[row, first:last].to(precision)
            optimizer.state[block] = {name: _of_row(value, row, len(X), precision) for name, value in known.items()}
        optimizer.step()
        stream = None if X.dtype == precision else draws(i)
        for block, (first, last), state, kept in zip(blocks, columns, states, numbers, strict=True):
            _keep(block.data, X[row, first:last], stream)
            for name, value in optimizer.state[block].items():
                if not isinstance(value, torch.Tensor) or value.shape != block.shape:
                    kept[name] = value
                    continue
                if name not in state:
                    state[name] = X.new_empty(len(X), last - first)
                _keep(value, state[name][row], stream)
    for block, (first, last), state, kept in zip(blocks, columns, states, numbers, strict=True):
        block.grad = None
        block.data = X[:, first:last]
        del optimizer.state[block]
        if state or kept:
            optimizer.state[block] = state | kept


def _of_row(value: Any, row: slice, m: int, precision: torch.dtype) -> Any:
    """A row of an entry of the state; a number is copied, since the optimizer changes it in place."""
    if not isinstance(value, torch.Tensor):
        return value
    return value[row].to(precision) if value.ndim == 2 and len(value) == m else value.clone()


def _keep(value: torch.Tensor, place: torch.Tensor, stream: torch.Generator | None) -> None:
    """Bring a stepped row to its place, unless it is there."""
    if stream is not None:
        round_at_random(value, place, stream)
    elif value.data_ptr() != place.data_ptr():
        place.copy_(value)
