"""CHOCO-SGD: gossip with compressed messages (Koloskova et al. 2019).

    q = Q(X′ − X̂);  X̂⁺ = X̂ + q;  X⁺ = X′ + γ (Wᵀ X̂⁺ − X̂⁺)

X̂ are the public copies that neighbors know; only q travels. Wᵀ X̂ is kept up to date from what arrives, S⁺ = S + Wᵀ q,
which asks for the same W at every mixing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch

from mixwise.algorithms.base import Algorithm, Belongs, one_matrix
from mixwise.errors import TrainingError
from mixwise.mixing import MixingMatrix
from mixwise.network import Network
from mixwise.policies import Plan, Policy
from mixwise.seeding import generator

_SAME_WEIGHTS = (
    "CHOCO keeps sums over its neighbors' public copies, so the weights must stay the same: "
    "take one fixed matrix, such as metropolis-hastings"
)


class Compressor(Protocol):
    """Makes a row short; what it returns is what the receiver unpacks."""

    def __call__(self, rows: torch.Tensor, nodes: range, t: int) -> torch.Tensor:
        """Q(rows), (m, d), for mixing t; it may use the memory of `rows`."""
        ...

    def message_bytes(self, row: torch.Tensor) -> int:
        """Bytes of a compressed row on the wire."""
        ...


class TopK:
    """Keeps the share of entries that are largest in modulus: values and positions travel."""

    def __init__(self, share: float = 0.01) -> None:
        if not 0 < share <= 1:
            raise TrainingError(f"share = {share}; the share of entries that travel lies in (0, 1]")
        self.share = share

    def _k(self, d: int) -> int:
        return max(1, round(self.share * d))

    def __call__(self, rows: torch.Tensor, nodes: range, t: int) -> torch.Tensor:
        """Row by row, the k largest entries, the rest 0."""
        kept = torch.zeros_like(rows)
        index = rows.abs().topk(self._k(rows.shape[1]), dim=1).indices
        return kept.scatter_(1, index, rows.gather(1, index))

    def message_bytes(self, row: torch.Tensor) -> int:
        """k values and k positions of 4 bytes."""
        return self._k(row.numel()) * (row.element_size() + 4)


class Quantize:
    """Rounds entries at random to 2^bits − 1 levels of the row's norm (QSGD, Alistarh et al. 2017).

    Scaled down so that the error is smaller than the row in expectation, which CHOCO needs.
    """

    def __init__(self, bits: int = 4, seed: int = 0) -> None:
        if not 1 <= bits <= 16:
            raise TrainingError(f"bits = {bits}; a level takes 1 to 16 bits")
        self.bits, self.seed = bits, seed

    def __call__(self, rows: torch.Tensor, nodes: range, t: int) -> torch.Tensor:
        """Row by row, with draws that know node and mixing only."""
        levels, d = 2**self.bits - 1, rows.shape[1]
        shrink = 1 + min(d / levels**2, math.sqrt(d) / levels)  # makes the expected error smaller than the row
        for node, row in zip(nodes, rows, strict=True):
            norm = row.norm()
            if norm == 0:
                continue
            draws = torch.rand(d, generator=generator(self.seed, "quantize", node, t), dtype=row.dtype).to(row.device)
            rounded = (row.abs() / norm * levels + draws).floor_()
            row.copy_(row.sign() * rounded * (norm / (levels * shrink)))
        return rows

    def message_bytes(self, row: torch.Tensor) -> int:
        """The norm, and a sign and a level per entry."""
        return row.element_size() + math.ceil(row.numel() * (self.bits + 1) / 8)


class Choco(Algorithm):
    """Compressed gossip with the consensus step size γ = `gamma`."""

    belongs: Mapping[str, Belongs] = {"t": "all"}

    def __init__(self, compressor: Compressor | None = None, gamma: float = 0.1) -> None:
        super().__init__()
        if not 0 < gamma <= 1:
            raise TrainingError(f"gamma = {gamma}; the consensus step size lies in (0, 1]")
        self.compressor, self.gamma = TopK(0.1) if compressor is None else compressor, gamma
        self._W: MixingMatrix | None = None

    def check_policy(self, policy: Policy) -> None:
        """One matrix for all mixings."""
        super().check_policy(policy)
        if policy.changes:
            raise TrainingError(f"{type(policy).__name__} changes the weights while the run goes on; {_SAME_WEIGHTS}")

    def check_weights(self, W: MixingMatrix) -> None:
        """Doubly stochastic, and the same at every mixing."""
        super().check_weights(W)
        if self._W is not None and self._W != W:
            raise TrainingError(f"the weights are not those of the mixing before; {_SAME_WEIGHTS}")
        self._W = W

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """Send what the public copies lack, and move towards those of the neighbors."""
        W = one_matrix(plan, "CHOCO")
        if "public" not in self.state:
            zeros, t = torch.zeros_like(X_prime), torch.zeros((), dtype=torch.int64)
            self.state |= {"public": zeros, "mixed": zeros.clone(), "t": t}
        public, mixed, t = self.state["public"], self.state["mixed"], self.state["t"]
        q = self.compressor(X_prime - public, network.nodes, int(t))
        public.add_(q)
        mixed.add_(network.mix(q, W, out=q, message_bytes=self.compressor.message_bytes(X_prime[0])))
        t += 1
        return X_prime.add_(mixed - public, alpha=self.gamma)
