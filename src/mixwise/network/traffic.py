"""Messages between nodes: how many bytes they take, their form, and gossip steps that are under way.

Legend: n nodes in all; m rows owned by this process; rows (m, d) row-contiguous tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch

from mixwise.network.values import BoolArray
from mixwise.network.wire import Wire

LONG_ROW = 1 << 16  # bytes; shorter rows are faster copied, or sent whole, than sent in several messages


@dataclass(frozen=True)
class Cargo:
    """The content of messages, and what becomes of them on their way.

    Attributes:
        counted: the count of `Traffic` that their bytes belong to. Parameters are rounded to `wire_dtype`, and must be
            finite where they leave.
        optional: whether receivers can do without: along an undirected edge both directions count, or neither, and a
            guard may leave out bad ones.
        reliable: whether they are sent again until they arrive.
    """

    counted: Literal["parameters", "sketches"]
    optional: bool = False
    reliable: bool = False


ROWS = Cargo("parameters")
SKETCHES = Cargo("sketches", optional=True)  # and offers
AGREEMENT = Cargo("sketches", reliable=True)  # what all must know alike


class Arrivals(NamedTuple):
    """The messages of an exchange that arrive at the owned nodes, sorted by (receiver, sender).

    Attributes:
        rows: (A, w); 0 where a message was lost.
        lost: (A,), which were lost; None if nothing can be.
        unpaired: (A,), which were lost in either direction, where both ends know it; None where they do not.
    """

    rows: torch.Tensor
    lost: BoolArray | None = None
    unpaired: BoolArray | None = None

    @property
    def unused(self) -> BoolArray:
        """(A,), the messages that must not be used: those that were lost, in either direction where that is known."""
        found = self.lost if self.unpaired is None else self.unpaired
        return np.zeros(len(self.rows), dtype=bool) if found is None else found


@dataclass
class Traffic:
    """Bytes that the nodes have sent since the start, summed over all nodes; seconds, where links are simulated.

    The counts are those of this implementation with one node per process, however many nodes a process has and also in
    a simulation: per gossip step a row along every arc with a non-zero weight; per gather each row to n − 1 nodes; per
    average over all nodes, including a gossip step with W = J, 2 (n − 1) / n rows per node. Processes send rows below
    64 kB whole to all others, n − 1 rows per node in one round, because that is faster; they are counted as longer ones
    would be, since small models stand for large ones in comparisons. Messages, and how many of them were lost, are
    counted where faults are simulated.
    """

    parameters: int = 0
    sketches: int = 0
    seconds: float = 0.0
    messages: int = 0
    lost: int = 0

    def add(self, cargo: Cargo, size: int) -> None:
        """Count `size` bytes."""
        if cargo.counted == "parameters":
            self.parameters += size
        else:
            self.sketches += size

    def reset(self) -> None:
        """Count from 0 again."""
        vars(self).update(vars(Traffic()))


class Pending(Protocol):
    """A gossip step under way; its rows must not change until `wait` or `move` returns."""

    def wait(self) -> torch.Tensor:
        """Return the owned rows of Wᵀ X."""
        ...

    def move(self, rows: torch.Tensor) -> None:
        """Instead of `wait`: add (W − I)ᵀ X to these rows, in place; the memory of X may be overwritten."""
        ...


class Packing(Protocol):
    """How the owned rows of one mixing look on the wire; packing and unpacking a packed row preserves its bits.

    Attributes:
        dtype, width: of a packed row.
    """

    dtype: torch.dtype
    width: int

    def pack(self, position: int, packed: torch.Tensor) -> None:
        """Write the owned row at this position to `packed` (width,)."""
        ...

    def unpack(self, packed: torch.Tensor, row: torch.Tensor) -> None:
        """Write a row that a node has packed to `row` (d,)."""
        ...


def message_bytes(rows: torch.Tensor, form: Packing | Wire | None) -> int:
    """Bytes of one row on the wire, in this form or as it is."""
    return rows.shape[1] * rows.element_size() if form is None else form.width * form.dtype.itemsize


def average_bytes(n: int, size: int) -> int:
    """Bytes that n nodes send to average rows of `size` bytes in parts, as an all-reduce does; the fewest possible."""
    return 2 * (n - 1) * size
