"""Which optimizers may work on rows, and what happens to gradients and step sizes around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from mixwise.errors import TrainingError

# Their update of an entry depends on that entry's own history alone, so a block of rows is as good as a single one.
ELEMENTWISE = (
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD",
)  # fmt: skip


def check_elementwise(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer, if its update never looks across entries of several rows."""
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
    on one of several blocks of columns they would change the wrong entries, so that is refused. They also round the
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


def factor(
    steps: int, *, warmup: float = 0.0, warmup_from: float = 0.0, decay_at: Sequence[float] = (), gamma: float = 0.1,
    cosine: bool = False,
) -> Callable[[int], float]:  # fmt: skip
    """The learning rate at step t as a multiple of its base: for `torch.optim.lr_scheduler.LambdaLR`.

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
