"""An optimizer's step on long rows, taken row by row.

Element by element it is the same step, but the optimizer's temporary tensors are one row long, and a row's values do
not depend on which rows come with it.

Legend: X, G (m, d); a block of columns (m, c), one per parameter of the optimizer; an entry of its state (m, c).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

# Numbers of a long row: beside it, the cost of a step of its own, about 0.1 ms, is small.
LONG = 1 << 20


def step_rows(
    optimizer: torch.optim.Optimizer,
    blocks: Sequence[torch.nn.Parameter],
    columns: Sequence[tuple[int, int]],
    X: torch.Tensor,
    G: torch.Tensor,
) -> None:
    """Take one step of the optimizer, in place.

    Args:
        optimizer: steps the blocks.
        blocks: its parameters, views of the columns of X.
        columns: (start, stop) of each block.
        X, G: rows and gradients.
    """
    states: list[dict[str, Any]] = [optimizer.state.pop(block, {}) for block in blocks]
    before = [dict(state) for state in states]  # empty at the first step, for every row
    numbers: list[dict[str, Any]] = [{} for _ in blocks]  # state that is not (m, c), such as the step count
    for i in range(len(X)):
        row = slice(i, i + 1)
        for block, (first, last), known in zip(blocks, columns, before, strict=True):
            block.data = X[row, first:last]
            block.grad = G[row, first:last]
            optimizer.state[block] = {name: _of_row(value, row, len(X)) for name, value in known.items()}
        optimizer.step()
        for block, (first, last), state, kept in zip(blocks, columns, states, numbers, strict=True):
            for name, value in optimizer.state[block].items():
                if not isinstance(value, torch.Tensor) or value.shape != block.shape:
                    kept[name] = value
                    continue
                if name not in state:
                    state[name] = X.new_empty(len(X), last - first)
                if value.data_ptr() != state[name][row].data_ptr():  # made by the first step
                    state[name][row] = value
    for block, (first, last), state, kept in zip(blocks, columns, states, numbers, strict=True):
        block.grad = None
        block.data = X[:, first:last]
        del optimizer.state[block]
        if state or kept:
            optimizer.state[block] = state | kept


def _of_row(value: Any, row: slice, m: int) -> Any:
    """One row of an entry of the state; a number is copied, since the optimizer changes it in place."""
    if not isinstance(value, torch.Tensor):
        return value
    return value[row] if value.ndim == 2 and len(value) == m else value.clone()
