"""CHOCO-SGD: gossip with compressed messages (Koloskova et al. 2019).

    q = Q(X′ − X̂);  X̂⁺ = X̂ + q;  X⁺ = X′ + γ (Wᵀ X̂⁺ − X̂⁺)

X̂ are the public copies that neighbors know; only q travels. Wᵀ X̂ is kept up to date from what arrives, S⁺ = S + Wᵀ q,
which requires the same W at every mixing. The compressors Q are lossy maps of rows, each with its form on the wire.

Legend: rows (m, d), owned; Q(rows) has the same shape, and its rows can be written in few bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Protocol

import torch
from annotated_types import Interval

from mixwise.network import Packing
from mixwise.parts import Share, family, part
from mixwise.protocols import Algorithm, Context, Needs, Network, Plan, Round, State
from mixwise.seeding import generator


class Compressed(Packing, Protocol):
    """Q(rows), which a receiver unpacks bit for bit."""

    rows: torch.Tensor


@family("compressor")
class Compressor:
    """A lossy map Q of rows; subclasses are frozen dataclasses."""

    def __call__(self, rows: torch.Tensor, nodes: range, t: int, seed: int = 0) -> Compressed:
        """Return Q(rows), (m, d), for mixing t, with draws named by the seed; the memory of `rows` may be used."""
        raise NotImplementedError


# --- some entries ---
@part("top-k", title="the largest {share:g} of the entries")
@dataclass(frozen=True)
class TopK(Compressor):
    """Keeps the `share` of entries that are largest in modulus; values and positions travel."""

    share: Share = 0.1

    def __call__(self, rows: torch.Tensor, nodes: range, t: int, seed: int = 0) -> FewEntries:
        """Keep the k largest entries of each row, and set the others to 0."""
        index = rows.abs().topk(max(1, round(self.share * rows.shape[1])), dim=1).indices
        return FewEntries(torch.zeros_like(rows).scatter_(1, index, rows.gather(1, index)), index)


class FewEntries:
    """Rows that are 0 but for k entries: k positions of 4 bytes and k values travel."""

    dtype = torch.uint8

    def __init__(self, rows: torch.Tensor, index: torch.Tensor) -> None:
        self.rows, self._index = rows, index
        self._positions = 4 * index.shape[1]  # bytes
        self.width = self._positions + rows.element_size() * index.shape[1]

    def pack(self, position: int, packed: torch.Tensor) -> None:
        """Write the positions, then the values."""
        index = self._index[position]
        packed[: self._positions] = index.int().view(torch.uint8)
        packed[self._positions :] = self.rows[position, index].view(torch.uint8)

    def unpack(self, packed: torch.Tensor, row: torch.Tensor) -> None:
        """Write zeros, and the values at their positions."""
        index = packed[: self._positions].clone().view(torch.int32).long()  # a view must begin at a multiple of 4
        row.zero_().scatter_(0, index, packed[self._positions :].clone().view(row.dtype))


# --- few levels ---
@part("quantize", title="random rounding to {bits} bits", cite="Alistarh et al. 2017")
@dataclass(frozen=True)
class Quantize(Compressor):
    """Rounds entries at random to 2^bits − 1 levels of the row's norm (QSGD, Alistarh et al. 2017).

    Scaled down so that the error is smaller than the row in expectation, which CHOCO needs.
    """

    bits: Annotated[int, Interval(ge=1, le=16)] = 4

    def __call__(self, rows: torch.Tensor, nodes: range, t: int, seed: int = 0) -> FewLevels:
        """Round row by row, with draws named by seed, node and mixing."""
        levels, d = 2**self.bits - 1, rows.shape[1]
        shrink = 1 + min(d / levels**2, math.sqrt(d) / levels)  # makes the expected error smaller than the row
        units = torch.zeros(len(rows), dtype=rows.dtype, device=rows.device)
        for position, (node, row) in enumerate(zip(nodes, rows, strict=True)):
            norm = row.norm()
            if norm == 0:  # or too small to be distinguished from 0
                row.zero_()
                continue
            stream = generator(seed, "quantize", node, t)
            draws = torch.rand(d, generator=stream, dtype=row.dtype, device="cpu").to(row.device)
            rounded = (row.abs() / norm * levels + draws).floor_().clamp_(max=levels)
            units[position] = norm / (levels * shrink)
            row.copy_(row.sign() * rounded * units[position])
        return FewLevels(rows, units, self.bits)


class FewLevels:
    """Rows of whole multiples, less than 2^bits of them, of a unit: the unit travels, and a sign and a level per entry.

    Bit after bit: the lowest of all entries, then the next ones, the signs last.
    """

    dtype = torch.uint8

    def __init__(self, rows: torch.Tensor, units: torch.Tensor, bits: int) -> None:
        self.rows, self._units, self._bits = rows, units, bits
        self._unit = rows.element_size()  # bytes
        self.width = self._unit + math.ceil(rows.shape[1] * (bits + 1) / 8)

    def pack(self, position: int, packed: torch.Tensor) -> None:
        """Write the unit, then all bits."""
        row, unit = self.rows[position], self._units[position]
        levels = (row.abs() / torch.where(unit == 0, 1, unit)).round().int()
        planes = [(levels >> bit) & 1 for bit in range(self._bits)] + [torch.signbit(row)]
        bits = torch.zeros(8 * (self.width - self._unit), dtype=torch.uint8, device=row.device)
        bits[: len(planes) * len(row)] = torch.cat([plane.to(torch.uint8) for plane in planes])
        packed[: self._unit] = unit[None].view(torch.uint8)
        packed[self._unit :] = (bits.view(-1, 8) << _eight(row.device)).sum(dim=1, dtype=torch.uint8)

    def unpack(self, packed: torch.Tensor, row: torch.Tensor) -> None:
        """Write levels times unit, with their signs."""
        unit = packed[: self._unit].clone().view(row.dtype)
        bits = (packed[self._unit :, None] >> _eight(row.device)) & 1
        *planes, negative = bits.view(-1)[: (self._bits + 1) * len(row)].view(self._bits + 1, len(row))
        levels = torch.stack([plane.int() << bit for bit, plane in enumerate(planes)]).sum(dim=0)
        row.copy_(levels * unit)
        row.copy_(torch.where(negative.bool(), -row, row))


def _eight(device: torch.device) -> torch.Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


# --- compressed gossip ---
@part(
    "choco", title="CHOCO-SGD", cite="Koloskova et al. 2019",
    step="X⁺ = X′ + γ(WᵀX̂ − X̂)", mixes="Q(X′ − X̂)", sends="deg · compressed d", condition="doubly stochastic, fixed",
)  # fmt: skip
@dataclass(frozen=True)
class Choco(Algorithm):
    """Compressed gossip.

    Args:
        compressor: Q.
        gamma: γ, the consensus step size.
    """

    needs = Needs(fixed=True)

    compressor: Compressor = TopK(0.1)
    gamma: Share = 0.1

    def init(self, X: torch.Tensor, context: Context) -> State:
        """Start with X̂ = 0."""
        rows = {"public": torch.zeros_like(X), "mixed": torch.zeros_like(X)}
        return State(rows, shared={"t": 0}, scratch={"seed": context.at("compressor").seed})

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Send what the public copies lack, and move towards those of the neighbors."""
        W, public, mixed = plan.one_matrix("CHOCO"), state.rows["public"], state.rows["mixed"]
        lacking = round.X_prime - public
        packing = self.compressor(lacking, network.nodes, state.shared["t"], state.scratch["seed"])
        q = packing.rows
        public.add_(q)
        mixed.add_(network.mix(q, W, out=q, packing=packing))
        state.shared["t"] += 1
        round.X_prime.add_(mixed - public, alpha=self.gamma)
