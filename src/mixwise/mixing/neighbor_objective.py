"""The objective that neighbors minimize together (`neighbor_gme`), its value at a candidate, and a lower bound of it.

Legend: vectors over the E entries of `Neighborhoods`; F(W) = Σ_j w_jᵀ Γ_j w_j + λ s ‖w_j‖².
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from mixwise.mixing.matrix import FloatArray
from mixwise.mixing.neighborhoods import Neighborhoods
from mixwise.mixing.solution import TIE_BREAK, tie_broken

Blocks: TypeAlias = list[FloatArray]  # Γ on the neighborhoods: (g, D, D) per group

_NEAR_ZERO = 1e-3  # of the error of Metropolis-Hastings weights: smaller optima count as 0


class Candidate(NamedTuple):
    """Weights R whose sums are 1, as senders and as receivers know them, (E,) each; they may be negative."""

    sent: FloatArray
    heard: FloatArray


class Verdict(NamedTuple):
    """The result of testing a candidate, the same at all nodes."""

    theta: float  # the share of Metropolis-Hastings weights that makes the candidate a W ≥ 0
    total: float  # F(W), in the unit of the solve
    error: float  # Tr(WᵀΓW), in the caller's unit
    receivers: float  # F(A)
    bound: float  # a lower bound of F over all feasible W


class ScaledObjective:
    """The objective of one solve in its own unit: Γ has mean diagonal 1, and Γ and λ are divided by 1 + λ.

    Args:
        near: how to reach the neighbors, and all nodes.
        M: Metropolis-Hastings weights, (E,).
        blocks: Γ on the neighborhoods.
        regularization: λ.
        symmetric: whether W = Wᵀ is required, which improves the bound.
    """

    def __init__(
        self, near: Neighborhoods, M: FloatArray, blocks: Blocks, regularization: float, symmetric: bool
    ) -> None:
        self._near, self._M, self.n = near, M, near.graph.n
        self._symmetric, self._Gamma = symmetric, blocks
        loop = np.zeros_like(M)
        loop[near.loops] = 1.0
        local = np.column_stack([self._quadratic(loop, loop), self._quadratic(M, M), near.sums(M * M)])
        trace, self.usual_error, norm = (float(total) for total in near.tree.total(local))
        self.scale = trace / self.n
        penalty = tie_broken(regularization, self.scale)
        self._shrink, self.penalty = 1 / (1 + penalty), penalty / (1 + penalty)
        self._Gamma = [block / (self.scale or 1.0) * self._shrink for block in blocks]
        self._usual_quadratic = self.usual_error / (self.scale or 1.0) * self._shrink
        self.usual_total = self._usual_quadratic + self.penalty * norm
        self._present = near.filled(np.ones_like(M))  # 1 where a padded entry exists
        self._solvers: dict[float, list[tuple[FloatArray, FloatArray]]] = {}

    def _quadratic(self, x: FloatArray, y: FloatArray) -> FloatArray:
        """x_jᵀ Γ_j y_j per node, (m,)."""
        result, parts = np.empty(len(self._near.starts)), zip(self._near.filled(x), self._near.filled(y), strict=True)
        for group, Gamma, (left, right) in zip(self._near.groups, self._Gamma, parts, strict=True):
            result[group.nodes] = (left * (Gamma @ right[:, :, None])[:, :, 0]).sum(axis=1)
        return result

    def nearest(self, z: FloatArray, rho: float) -> FloatArray:
        """argmin_a f_j(a) + ρ/2 ‖a − z_j‖² with sum 1, for all nodes.

        With K = (2Γ + 2λ + ρ)⁻¹ it is ρ (K − K𝟏𝟏ᵀK / 𝟏ᵀK𝟏) z + K𝟏 / 𝟏ᵀK𝟏.
        """
        if rho not in self._solvers:
            self._solvers[rho] = [self._solver(*part, rho) for part in zip(self._Gamma, self._present, strict=True)]
        parts = zip(self._solvers[rho], self._near.filled(z), strict=True)
        return self._near.flat([(P @ part[:, :, None])[:, :, 0] + q for (P, q), part in parts])

    def _solver(self, Gamma: FloatArray, present: FloatArray, rho: float) -> tuple[FloatArray, FloatArray]:
        K = np.linalg.inv(2 * Gamma + (2 * self.penalty + rho) * np.eye(Gamma.shape[1]))
        k = (K @ present[:, :, None])[:, :, 0]
        q = k / k.sum(axis=1, keepdims=True)
        return rho * (K - k[:, :, None] * q[:, None, :]), q

    def judge(self, found: Candidate, a: FloatArray, y: FloatArray) -> Verdict:
        """Test a candidate R, the receivers' copy a and the dual y in one sweep over the tree."""
        near, M, R = self._near, self._M, found.heard
        negative = found.sent < 0
        needed = np.where(negative, -found.sent / np.where(negative, M - found.sent, 1.0), 0.0)
        f_a = self._quadratic(a, a) + self.penalty * near.sums(a * a)
        y_sent = near.across(y)
        y_sent = (y + y_sent) / 2 if self._symmetric else y_sent
        local = [
            *(self._quadratic(R, R), self._quadratic(R, M), near.sums(R * R), near.sums(R * M), near.sums(M * M)),
            *(f_a, f_a + near.sums(y * a) - near.largest(y_sent), near.largest(needed)),
        ]
        totals = near.tree.total(np.column_stack(local), maxima=1)
        RR, RM, rr, rm, mm, F_a, bound, theta = (float(total) for total in totals)
        keep = 1 - theta
        error = max(keep**2 * RR + 2 * keep * theta * RM + theta**2 * self._usual_quadratic, 0.0)
        norm = keep**2 * rr + 2 * keep * theta * rm + theta**2 * mm
        return Verdict(theta, error + self.penalty * norm, error / self._shrink * self.scale, F_a, bound)

    def reference(self, bound: float, tolerance: float) -> float:
        """The unit of a gap: at most the optimum, unless that is near 0; ‖W − J‖²_F is ‖W‖²_F − 1."""
        least = TIE_BREAK * self.n / tolerance
        return max(bound - self.penalty, _NEAR_ZERO * (self.usual_total - self.penalty), least)


def on_simplex(V: FloatArray) -> FloatArray:
    """The projections of the rows of V (g, D) on the simplex {v ≥ 0, Σ v = 1}: max(V − τ, 0), with τ by sorting.

    >>> on_simplex(np.array([[0.5, 0.9, -1.0]])).round(3).tolist()
    [[0.3, 0.7, 0.0]]
    """
    descending = -np.sort(-V, axis=1)
    excess = np.cumsum(descending, axis=1) - 1
    counts = np.arange(1, V.shape[1] + 1)
    positive = (descending * counts > excess).sum(axis=1)
    threshold = excess[np.arange(len(V)), positive - 1] / positive
    nearest: FloatArray = np.maximum(V - threshold[:, None], 0.0)
    return nearest
