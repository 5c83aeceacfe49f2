"""Quadratic objectives f_i(x) = ‖A_i x + b_i‖² with Gaussian gradient noise (paper, Section 6.1 and Appendix C).

Legend: A (n, r, d), b (n, r), X (m, d); gradient 2 A_iᵀ(A_i x + b_i) + ξ, ξ ~ N(0, noise · I).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import torch

from mixwise.errors import TrainingError
from mixwise.parts import Count, NonNegative, part
from mixwise.protocols import Layout, Task
from mixwise.seeding import generator, stream
from mixwise.tasks.others import AllHere, Others

Classes: TypeAlias = Literal["random", "two"]
_MOST = 10**8  # numbers of A in a recipe: 0.8 GB


class QuadraticTask(Task):
    """n quadratics in d dimensions, in float64; all nodes start from one x₀ ~ N(0, I).

    Args:
        A: one (r, d) matrix per node.
        b: one (r,) vector per node.
        noise: variance of each entry of the gradient noise.
        seed: of x₀ and the noise.
    """

    def __init__(self, A: torch.Tensor, b: torch.Tensor, noise: float = 0.0, seed: int = 0) -> None:
        if A.ndim != 3 or b.shape != A.shape[:2]:
            raise TrainingError(f"A has shape {tuple(A.shape)} and b {tuple(b.shape)}; expected (n, r, d) and (n, r)")
        for name, values in (("A", A), ("b", b)):
            if not bool(torch.isfinite(values).all()):
                raise TrainingError(f"{name} contains NaN or infinity; give finite numbers")
        if not 0 <= noise < math.inf:  # NaN fails every comparison
            raise TrainingError(f"noise = {noise}; a variance is finite, and 0 or larger")
        self.A, self.b, self.noise, self.seed = A.double(), b.double(), noise, seed
        self.nodes, self.layout = A.shape[0], Layout(A.shape[2])

    @cached_property
    def optimum(self) -> torch.Tensor:
        """x* = −(Σ A_iᵀA_i)⁻¹ Σ A_iᵀb_i, (d,)."""
        hessian = torch.einsum("nri,nrj->ij", self.A, self.A)
        linear = torch.einsum("nri,nr->i", self.A, self.b)
        return torch.linalg.solve(hessian, -linear)  # type: ignore[no-any-return]

    @cached_property
    def smoothness(self) -> float:
        """L: the largest eigenvalue of any 2 A_iᵀA_i."""
        return float(2 * torch.linalg.matrix_norm(self.A, ord=2).max() ** 2)

    def initial(self, nodes: Sequence[int]) -> torch.Tensor:
        """Return x₀ for every node."""
        x0 = torch.randn(self.layout.dim, generator=generator(self.seed, "x0"), dtype=torch.float64, device="cpu")
        return x0.expand(len(nodes), -1).clone()

    @np.errstate(over="ignore", invalid="ignore")  # a run that diverges: the error names the node
    def losses_and_gradients(
        self, X: torch.Tensor, nodes: Sequence[int], step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return f_i(x_i) and 2 A_iᵀ(A_i x_i + b_i) + ξ_i; the noise depends on the node and the step alone."""
        own = slice(nodes.start, nodes.stop) if isinstance(nodes, range) and nodes.step == 1 else list(nodes)
        A, b = self.A.numpy()[own], self.b.numpy()[own]  # in a third of the time of torch
        residual = np.matvec(A, X.detach().numpy()) + b
        G = torch.from_numpy(2 * np.vecmat(residual, A))
        if self.noise > 0:
            G += self.noise**0.5 * self._standard_noise(nodes, step)
        return torch.from_numpy(np.square(residual).sum(1)), G

    def full_gradients(self, x: torch.Tensor) -> torch.Tensor:
        """Return ∇f_i(x) of all nodes at one point x, (n, d), without noise."""
        residual = torch.einsum("nrd,d->nr", self.A, x) + self.b
        return 2 * torch.einsum("nrd,nr->nd", self.A, residual)

    def evaluate(self, X: torch.Tensor, others: Others | None = None) -> dict[str, float]:
        """Return the distance to the optimum, (1/n) Σ ‖x_i − x*‖²."""
        each = (X - self.optimum).square().sum(1, keepdim=True)
        return {"distance_to_optimum": float((others or AllHere(len(X))).gather(each).mean())}

    def _standard_noise(self, nodes: Sequence[int], step: int) -> torch.Tensor:
        noise = torch.empty(len(nodes), self.layout.dim, dtype=torch.float64, device="cpu")
        source = torch.Generator()  # one for all, seeded for each node: a new one takes as long as its draws
        for row, node in zip(noise, nodes, strict=True):
            row.normal_(generator=source.manual_seed(stream(self.seed, "noise", node, step)))
        return noise


@part("quadratics", "task", title="quadratics in {dim} dimensions", cite="the paper, Section 6.1 and Appendix C")
def quadratics(
    nodes: int, seed: int = 0, *, classes: Classes = "random", dim: Count = 10, noise: NonNegative = 0.1
) -> QuadraticTask:
    """One quadratic per node, drawn at random, or two classes of them on even and odd nodes."""
    if nodes * dim**2 > _MOST:
        raise TrainingError(f"dim = {dim} on {nodes} nodes makes {nodes * dim**2:.1e} numbers, allowed are {_MOST:.0e}")
    make = {"random": random_quadratics, "two": two_class_quadratics}[classes]
    return make(nodes, dim, noise, seed)


def random_quadratics(nodes: int, dim: int = 10, noise: float = 0.1, seed: int = 0) -> QuadraticTask:
    """The paper's Section 6.1: A_i (d × d) and b_i with entries N(0, 1)."""
    source = generator(seed, "quadratics")
    A = torch.randn(nodes, dim, dim, generator=source, dtype=torch.float64, device="cpu")
    b = torch.randn(nodes, dim, generator=source, dtype=torch.float64, device="cpu")
    return QuadraticTask(A, b, noise, seed)


def two_class_quadratics(nodes: int, dim: int = 10, noise: float = 0.001, seed: int = 0) -> QuadraticTask:
    """The paper's Appendix C: f_1 = ‖A(x − 𝟏)‖² on even nodes, f_2 = ‖A(x + 𝟏)‖² on odd ones, one A for all."""
    if nodes % 2:
        raise TrainingError(f"two classes of equal size need an even number of nodes, got {nodes}")
    A = torch.randn(dim, dim, generator=generator(seed, "quadratics"), dtype=torch.float64, device="cpu")
    signs = torch.tensor([-1.0, 1.0], dtype=torch.float64, device="cpu").repeat(nodes // 2)
    return QuadraticTask(A.expand(nodes, -1, -1), signs[:, None] * A.sum(1), noise, seed)
