"""The constants of the consensus recursion Ξ_t ≤ (1 − p/2) Ξ_{t−1} + η² (D e_{t−1} + A), as its proof gives them.

The proof in short, with X̃ = X − X̄, Δ = ∂f(X) − ∂f(X̄) and Young's inequality twice:
    E‖X̃⁺‖² = T₁ + T₂,   T₂ ≤ (1 − p) η² E‖∂F(X, ξ) − ∂f(X)‖²
    T₁ ≤ (1 + β₁)(1 + β₂) (1 − p) ‖X̃‖² + (1 + β₁)(1 + 1/β₂) (1 − p) η² ‖Δ‖² + (1 + 1/β₁) η² n ζ′²
    β₁ = p / (8(1 − p)),  β₂ = p / (8 − 7p),  ‖Δ‖ ≤ L ‖X̃‖,  so that 1 + 1/β₁ = (8 − 7p)/p.
"""

import math
from collections.abc import Iterable

import numpy as np
import torch

from builders import random_rows
from mixwise.mixing import consensus_distance
from theory.instances import one_step


def step_bound(p: float, L: float) -> float:
    """The largest η for which the factor of Ξ is at most 1 − p/2 (D-SGD); it is at least p / (√32 L)."""
    return math.sqrt(p / 4 / ((1 - 7 * p / 8) * (8 - 6 * p) / p + 6 * (1 - p))) / L


def mixing_constant(p: float) -> float:
    """1 + 1/β₁: how much of the relative heterogeneity arrives."""
    return (8 - 7 * p) / p


def expected_consensus(points: Iterable[torch.Tensor]) -> float:
    """The mean of (1/n)‖X − X̄‖² over equally likely X."""
    distances = [consensus_distance(X) for X in points]
    return sum(distances) / len(distances)


def expected_after(task, matrices, chances, X: torch.Tensor, eta: float) -> float:
    """E Ξ⁺ of a step of D-SGD over all ξ and W, exactly."""
    after = [expected_consensus(one_step(X, gradients, W, eta) for gradients in task.outcomes()) for W in matrices]
    return float(np.dot(chances, after))


def spread_points(mean: torch.Tensor, n: int, size: float, seed: int) -> torch.Tensor:
    """Rows around `mean`, at distances of this size from it; their mean is exactly `mean`."""
    rows = random_rows(n, len(mean), seed)
    return mean + size * (rows - rows.mean(0))
