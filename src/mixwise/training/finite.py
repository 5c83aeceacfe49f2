"""Values that are NaN or infinite, each with the advice that fits: before the first step it is not the step size.

Legend: X, G (m, d), losses (m,), of the owned nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mixwise.errors import TrainingError

_LOWER = "is no longer finite; lower the learning rate (lr)"


def check_initial(X: torch.Tensor, nodes: Sequence[int]) -> None:
    """Before the first step."""
    if (row := _bad_row(X)) is not None:
        raise TrainingError(
            f"the initial parameters of node {nodes[row]} are not finite before the first step; check how the model is "
            f"initialized, and the weights that it loads, for NaN and infinity"
        )


def check_losses(losses: torch.Tensor, nodes: Sequence[int], t: int) -> None:
    """The parameters that they were computed with are finite."""
    if (row := _bad_row(losses)) is not None:
        raise TrainingError(f"step {t}: the loss of node {nodes[row]} {_at_the_start(t) or _LOWER}")


def check_parameters(X: torch.Tensor, G: torch.Tensor, nodes: Sequence[int], t: int) -> None:
    """After a step of the optimizer with the gradients G."""
    if (row := _bad_row(X)) is not None:
        advice = _at_the_start(t)
        if advice and _bad_row(G[row : row + 1]) is not None:
            raise TrainingError(f"step {t}: the gradient of node {nodes[row]} {advice}")
        raise TrainingError(f"step {t}: a parameter of node {nodes[row]} {_LOWER}")


def _at_the_start(t: int) -> str:
    if t > 0:
        return ""
    return "is not finite, though its initial parameters are; check its data, the model and the loss"


def _bad_row(values: torch.Tensor) -> int | None:
    """The first row that is not finite."""
    # A sum passes on every NaN and infinity, at a twentieth of the cost of looking at each entry.
    if bool(torch.isfinite(values.sum())):
        return None
    bad = ~torch.isfinite(values).reshape(len(values), -1).all(dim=1)
    return int(bad.nonzero()[0]) if bool(bad.any()) else None
