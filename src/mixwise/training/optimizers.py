"""Optimizers on rows: which are allowed, how they step on long rows, gradient clipping, and learning-rate schedules.

Legend: X, G (m, d); a block of columns (m, c), one per parameter of the optimizer; an entry of its state (m, c).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mixwise.errors import TrainingError, kind_of

# Their update of an entry depends on that entry's own history alone, so a block of rows is as good as a single one.
ELEMENTWISE = (
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD",
)  # fmt: skip


def check_steps(optimizer: object, blocks: Sequence[torch.nn.Parameter]) -> None:
    """Reject what a factory has made if it is no optimizer, or one of other parameters than the rows."""
    remedy = "return one of the rows: optimizer=lambda rows: torch.optim.SGD(rows, lr=0.1)"
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TrainingError(f"optimizer(rows) returned {kind_of(optimizer)}, not an optimizer; {remedy}")
    rows = {id(block) for block in blocks}
    if not all(id(parameter) in rows for group in optimizer.param_groups for parameter in group["params"]):
        raise TrainingError(
            f"optimizer(rows) steps parameters that are not the rows, which would stay as they are; {remedy}"
        )


def check_elementwise(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer if its update never looks across entries of several rows."""
    name = type(optimizer).__name__
    if name not in ELEMENTWISE or type(optimizer) is not getattr(torch.optim, name):
        raise TrainingError(
            f"the optimizer {name} may look across entries of a tensor, and so across nodes; "
            f"element-wise optimizers are allowed: {', '.join(ELEMENTWISE)}"
        )
    return optimizer


# Their fused kernels take one pass over the rows where the others take up to five.
_FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)


def fuse_where_safe(optimizer: torch.optim.Optimizer, *, row_by_row: bool = False) -> torch.optim.Optimizer:
    """Switch on the fused kernels of torch, unless the caller has chosen, where the rows are one block.

    The fused kernels of the CPU take the memory of a tensor as one piece, also if it is not (seen with torch 2.13):
    on one of several blocks of columns they would change the wrong entries, so that is rejected. They also round the
    last few numbers of that piece in another way, so that a row's values depend on how many rows a process has; rows in
    float64 are there for the sake of their digits and stay without them. Row by row, every block is one piece.
    """
    for group in optimizer.param_groups:
        whole = row_by_row or all(block.is_contiguous() for block in group["params"])
        if group.get("fused") and not whole:
            raise TrainingError(
                "fused=True does not work on one of several blocks of columns, as parameter groups are; leave it out"
            )
        free = group.get("fused", False) is None and not group.get("foreach") and not group.get("differentiable")
        first = group["params"][0]
        fast = first.device.type == "cuda" or (first.device.type == "cpu" and first.dtype != torch.float64)
        if isinstance(optimizer, _FUSED) and free and whole and fast:
            group["fused"] = True
    return optimizer


def clip_rows(G: torch.Tensor, largest: float) -> None:
    """Scale every row of G (m, d) that is longer than `largest` down to it, in place."""
    norms = G.norm(dim=1, keepdim=True)
    G.mul_((largest / norms.clamp(min=1e-38)).clamp(max=1))


# --- long rows, one by one ---
# Numbers of a long row: beside it, the cost of a step of its own, about 0.1 ms, is small.
LONG = 1 << 20


def step_rows(
    optimizer: torch.optim.Optimizer,
    blocks: Sequence[torch.nn.Parameter],
    columns: Sequence[tuple[int, int]],
    X: torch.Tensor,
    G: torch.Tensor,
) -> None:
    """Take one step of the optimizer, in place, row by row.

    Element by element it is the same step, but the optimizer's temporary tensors are one row long, and a row's values
    do not depend on which rows come with it.

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
    """Return one row of an entry of the state; a number is copied, since the optimizer changes it in place."""
    if not isinstance(value, torch.Tensor):
        return value
    return value[row] if value.ndim == 2 and len(value) == m else value.clone()


# --- schedules ---
def factor(
    steps: int, *, warmup: float = 0.0, warmup_from: float = 0.0, decay_at: Sequence[float] = (), gamma: float = 0.1,
    cosine: bool = False,
) -> Callable[[int], float]:  # fmt: skip
    """Return the learning rate at step t as a multiple of its base, for `torch.optim.lr_scheduler.LambdaLR`.

    Args:
        steps: length of the run; the shares below are shares of it.
        warmup: share of the steps over which the rate grows linearly from `warmup_from` to 1.
        decay_at: shares after which the rate is multiplied by `gamma`, each.
        cosine: instead of steps, half a cosine from 1 at the end of the warm-up to 0 at the end.
    """
    rising = round(warmup * steps)
    marks = [round(share * steps) for share in decay_at]

    def at(t: int) -> float:
        if t < rising:
            return warmup_from + (1 - warmup_from) * t / rising
        if cosine:
            share = (t - rising) / max(1, steps - rising)
            return 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * share, dtype=torch.float64))))
        return gamma ** sum(t >= mark for mark in marks)

    return at
