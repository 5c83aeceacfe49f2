"""Quasi-global momentum: momentum made of the movement after mixing, which all nodes nearly share (Lin et al. 2021).

    m = β m̂ + g;  X′ = X − η m  (Nesterov: X − η (β m + g));  X⁺ = mixing of X′
    d = (X − X⁺)/η;  m̂⁺ = μ m̂ + (1 − μ) d

Weight decay is part of the gradient g, as in the authors' code. The mixing is done by any other algorithm: D-SGD as in
the paper, or RelaySGD.
"""

from __future__ import annotations

import torch

from mixwise.algorithms.base import Algorithm
from mixwise.algorithms.dsgd import DSGD
from mixwise.errors import TrainingError
from mixwise.mixing import MixingMatrix
from mixwise.network import Network
from mixwise.policies import Plan, Policy


class _AroundAnother(Algorithm):
    """An algorithm that leaves the mixing to another one; both share one state."""

    needs_previous = True
    owns_momentum = True

    def __init__(self, inner: Algorithm | None = None) -> None:
        super().__init__()
        self.inner = DSGD() if inner is None else inner
        if self.inner.owns_momentum:
            raise TrainingError(f"{type(self.inner).__name__} has a momentum of its own; take one of the two")
        self.inner.state = self.state
        self.mixes_with, self.mixes_steps = self.inner.mixes_with, self.inner.mixes_steps
        self.needs_symmetric, self.needs_lazy = self.inner.needs_symmetric, self.inner.needs_lazy
        self.belongs = self.inner.belongs

    def check_optimizer(self, optimizer: torch.optim.Optimizer, local_steps: int) -> None:
        """SGD without momentum, and what the mixing needs."""
        super().check_optimizer(optimizer, local_steps)
        self.inner.check_optimizer(optimizer, local_steps)

    def check_policy(self, policy: Policy) -> None:
        """What the mixing needs."""
        super().check_policy(policy)
        self.inner.check_policy(policy)

    def check_weights(self, W: MixingMatrix) -> None:
        """What the mixing needs."""
        self.inner.check_weights(W)

    def check_buffers(self) -> None:
        """What the mixing needs."""
        self.inner.check_buffers()

    def mix_buffers(self, B: torch.Tensor, plan: Plan, network: Network) -> None:
        """As the inner algorithm does."""
        self.inner.mix_buffers(B, plan, network)

    def update(self, X: torch.Tensor, X_prime: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The update that the inner algorithm mixes."""
        return self.inner.update(X, X_prime, out)

    def rows_to_mix(self, X: torch.Tensor, X_prime: torch.Tensor) -> torch.Tensor:
        """Those of the inner algorithm."""
        return self.inner.rows_to_mix(X, X_prime)

    def model_rows(self, X: torch.Tensor) -> torch.Tensor:
        """Those of the inner algorithm."""
        return self.inner.model_rows(X)

    def arcs_into(self, nodes: range) -> list[int]:
        """Those of the inner algorithm."""
        return self.inner.arcs_into(nodes)

    def _moved(self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float) -> torch.Tensor:
        """The inner algorithm's mixing; X is ours afterwards, too."""
        return self.inner.combine(X.clone() if self.inner.needs_previous else X_prime, X_prime, plan, network, lr)


class QuasiGlobalMomentum(_AroundAnother):
    """QG-DSGDm-N, or QG-DSGDm without `nesterov`.

    Args:
        beta: β, the weight of the momentum in a step.
        mu: μ, how slowly the momentum follows; β by default, as in the paper.
        nesterov: whether to look ahead.
        inner: what mixes; D-SGD by default.
    """

    def __init__(
        self, beta: float = 0.9, *, mu: float | None = None, nesterov: bool = True, inner: Algorithm | None = None
    ) -> None:
        super().__init__(inner)
        self.beta, self.mu, self.nesterov = beta, beta if mu is None else mu, nesterov
        if not (0 <= self.beta < 1 and 0 <= self.mu < 1):
            raise TrainingError(f"beta = {beta}, mu = {mu}; both lie in [0, 1)")

    def check_optimizer(self, optimizer: torch.optim.Optimizer, local_steps: int) -> None:
        """One step size for all columns: the movement is divided by it."""
        super().check_optimizer(optimizer, local_steps)
        rates = sorted({float(group["lr"]) for group in optimizer.param_groups})
        if len(rates) > 1:
            raise TrainingError(
                f"quasi-global momentum divides the movement of all columns by one step size, but the groups have "
                f"lr = {', '.join(map(str, rates))}; give all groups the same"
            )

    def direction(self, G: torch.Tensor, network: Network) -> None:
        """β m̂ + g, or with Nesterov's look ahead β (β m̂ + g) + g."""
        self.inner.direction(G, network)
        if "momentum" not in self.state:
            self.state["momentum"] = torch.zeros_like(G)
        if self.nesterov:
            G.mul_(1 + self.beta).add_(self.state["momentum"], alpha=self.beta**2)
        else:
            G.add_(self.state["momentum"], alpha=self.beta)

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """Mix, and learn the momentum from where it led."""
        X_new = self._moved(X, X_prime, plan, network, lr)
        if lr > 0:  # a warm-up from 0 has not moved yet
            d = X.sub_(X_new)
            self.state["momentum"].mul_(self.mu).add_(d, alpha=(1 - self.mu) / lr)
        return X_new


class QuasiGlobalAdam(_AroundAnother):
    """QG-DAdam: both moments follow the direction d / ‖d‖ of the movement after mixing.

    m = β₁ m̂ + (1 − β₁) g;  v = β₂ v̂ + (1 − β₂) g²;  X′ = X − η m / (√v + ε);  d̂ = d / ‖d‖ per node
    m̂⁺ = β₁ m̂ + (1 − β₁) d̂;  v̂⁺ = β₂ v̂ + (1 − β₂) d̂²

    Neither moment is corrected for its start at 0; the authors' code divides m and v by Adam's 1 − β₁ᵗ and 1 − β₂ᵗ. The
    first step is (1 − β₁) / √(1 − β₂) = 3.2 times as long without that, and the factor goes to 1 as t grows.
    """

    def __init__(
        self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, *, inner: Algorithm | None = None
    ) -> None:
        super().__init__(inner)
        if not all(0 <= beta < 1 for beta in betas):
            raise TrainingError(f"betas = {betas}; both lie in [0, 1)")
        self.betas, self.eps = betas, eps

    def direction(self, G: torch.Tensor, network: Network) -> None:
        """m / (√v + ε)."""
        self.inner.direction(G, network)
        if "momentum" not in self.state:
            self.state |= {"momentum": torch.zeros_like(G), "squares": torch.zeros_like(G)}
        first, second = self.betas
        v = (self.state["squares"] * second).addcmul_(G, G, value=1 - second)
        G.mul_(1 - first).add_(self.state["momentum"], alpha=first).div_(v.sqrt_().add_(self.eps))

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """Mix, and learn both moments from where it led."""
        X_new = self._moved(X, X_prime, plan, network, lr)
        d = X.sub_(X_new)
        length = d.norm(dim=1, keepdim=True)
        d.div_(torch.where(length > 0, length, torch.ones_like(length)))
        first, second = self.betas
        self.state["momentum"].mul_(first).add_(d, alpha=1 - first)
        self.state["squares"].mul_(second).addcmul_(d, d, value=1 - second)
        return X_new
