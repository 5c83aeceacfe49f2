"""Values that must not be mixed: NaN, infinity, and rows so long that a neighbor's own row would be rounded away.

Rows are checked when they leave, in the precision in which they travel, so that the error names the node that is broken
and nothing is sent. They are checked again when they arrive: a node may be broken in a way that it does not notice.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import DivergedError, MixingError, TrainingError, kind_of
from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.mixing.matrix import FloatArray

BoolArray = npt.NDArray[np.bool_]
Cause: TypeAlias = Literal["learning rate", "node", "either"]  # what may have made a row too long, or not finite
_FEW = 1 << 12  # numbers
_REMEDIES: dict[Cause, str] = {
    "learning rate": "lower the learning rate (lr)",
    "node": "fix that node",
    "either": "lower the learning rate (lr), fix that node",
}


def check_dtype(rows: torch.Tensor) -> None:
    """Reject what is not a tensor, and rows whose averages would be cut to whole numbers."""
    if not isinstance(rows, torch.Tensor):
        raise MixingError(f"rows is {kind_of(rows)}; pass a tensor with one row per node")
    if not rows.is_floating_point():
        dtype = str(rows.dtype).removeprefix("torch.")
        raise MixingError(f"rows of dtype {dtype} cannot be averaged, only floating-point ones can; pass rows.float()")


def lengths(rows: torch.Tensor) -> FloatArray:
    """Return ‖x‖ of each row; NaN or infinity if it has such entries, or if its square overflows."""
    found: FloatArray = torch.linalg.vector_norm(rows, dim=1, dtype=_wide(rows)).double().cpu().numpy()
    return found


def is_bad(length: FloatArray, own: FloatArray, dtype: torch.dtype) -> BoolArray:
    """Whether rows of this length must not be mixed into rows of length `own`: max(own, 1)/ε would erase those."""
    bad: BoolArray = ~(length <= np.maximum(own, 1.0) * _most(dtype))
    return bad


def check_leaving(rows: torch.Tensor, senders: range | IntArray, step: int | None) -> None:
    """Reject rows that are not finite as they travel; each has a sender."""
    # A sum passes on every NaN and infinity, at a twentieth of the cost of looking at each entry.
    if not rows.is_floating_point() or math.isfinite(rows.sum(dtype=_wide(rows))):
        return
    bad = ~torch.isfinite(rows).all(dim=1)
    if bool(bad.any()):
        node, form = senders[int(bad.nonzero()[0])], str(rows.dtype).removeprefix("torch.")
        raise DivergedError(
            f"{_at(step)}node {node} would send NaN or infinity (as {form}), so nothing was sent; check its data "
            f"and its buffers (BatchNorm statistics), or lower the learning rate (lr)",
            node=int(node),
            step=step,
        )


def check_lengths(rows: torch.Tensor, graph: Graph, weights: FloatArray, step: int | None) -> None:
    """Reject rows (n, d) of all nodes that must not leave, or be mixed into another, with weights on graph.pattern."""
    if _is_harmless(rows):
        return
    length = lengths(rows)
    check_leaving(rows, range(graph.n), step)
    senders, receivers = graph.pattern.rows, graph.pattern.cols
    bad = is_bad(length[senders], length[receivers], rows.dtype) & (weights != 0) & (senders != receivers)
    if bad.any():
        i, j = int(senders[bad.argmax()]), int(receivers[bad.argmax()])
        raise rejected(i, j, float(length[i]), float(length[j]), step, "learning rate")


def check_arrived(arrived: torch.Tensor, own: torch.Tensor, senders: IntArray, nodes: range, step: int | None) -> None:
    """Reject rows that have arrived and must not be mixed into any of the owned rows."""
    if _is_harmless(arrived):
        return
    length, owned = lengths(arrived), lengths(own)
    bad = is_bad(length, np.full(len(length), owned.max()), own.dtype)
    if bad.any():
        e = int(bad.argmax())
        receiver = nodes[int(owned.argmax())]
        raise rejected(int(senders[e]), receiver, float(length[e]), float(owned.max()), step, "either")


def rejected(
    sender: int, receiver: int, length: float, own: float, step: int | None, cause: Cause, can_skip: bool = True
) -> TrainingError:
    """Return the error about a row that must not be mixed; some messages cannot be left out, whatever `on_bad` is."""
    what = "with NaN, infinity or an overflow"
    if np.isfinite(length):
        what = f"of length {length:.3g}, next to which its own of {own:.3g} vanishes"
    skip = ", or continue without such rows: on_bad: skip"
    skip = skip if can_skip else "; on_bad cannot leave out a message that all wait for"
    message = f"{_at(step)}node {sender} sent node {receiver} a row {what}; {_REMEDIES[cause]}{skip}"
    return TrainingError(message) if cause == "node" else DivergedError(message, node=sender, step=step)


def _is_harmless(rows: torch.Tensor) -> bool:
    """Whether even all rows together are so short that each of them may be mixed into any other."""
    entries = rows.reshape(-1)
    if rows.dtype.itemsize < 4:  # their squares overflow
        entries = entries.to(_wide(rows))
    if rows.device.type == "cpu" and rows.numel() < _FEW:  # a call of NumPy takes a fifth of the time of one of torch
        few = entries.detach().numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.dot(few, few) <= _most(entries.dtype) ** 2)
    return torch.dot(entries, entries).item() <= _most(entries.dtype) ** 2  # NaN fails every comparison


def _at(step: int | None) -> str:
    return "" if step is None else f"step {step}: "


def _wide(rows: torch.Tensor) -> torch.dtype:
    return torch.promote_types(rows.dtype, torch.float32)


@lru_cache
def _most(dtype: torch.dtype) -> float:
    """1/ε, 8·10⁶ in float32 and below, where sums are rounded to float32."""
    return 1 / torch.finfo(torch.promote_types(dtype, torch.float32)).eps
