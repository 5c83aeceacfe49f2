"""The objective of GME-opt as neighbors know it together: its value, a lower bound of it, and the steps toward it.

Legend: m nodes owned here; vectors over the E entries of `Neighborhoods`; F, f_j, A, B, Y, ρ as in neighbor_gme.py.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from mixwise.mixing.matrix import FloatArray
from mixwise.mixing.neighborhoods import Neighborhoods
from mixwise.mixing.tree_sweeps import TreeSweeps

Blocks: TypeAlias = list[FloatArray]  # Γ on the neighborhoods: (g, D, D) per group

TIE_BREAK = 1e-8  # λ₀ on the scaled Γ: of all optimal W, the one of smallest ‖W‖_F, which mixes the most

_BALANCE = 5.0  # how unequal the two parts of the gap may be before ρ is doubled or halved
_CALMER = 0.7  # how much smaller a step of ρ is than one in the other direction
_PENALTIES = (2.0**-5, 2.0**10)  # ρ, for Γ scaled to mean diagonal 1; below that, flat directions of F take ages
_NEAR_ZERO = 1e-3  # of the error of Metropolis-Hastings weights: an optimum below that is told from 0 no further


class Candidate(NamedTuple):
    """Weights whose sums are 1, as senders and as receivers know them; they may be negative."""

    sent: FloatArray
    heard: FloatArray


class Verdict(NamedTuple):
    """What a test tells."""

    theta: float  # the share of Metropolis-Hastings weights that makes a candidate R a W ≥ 0
    total: float  # F(W), in the unit of the solve
    error: float  # Tr(WᵀΓW), in the caller's
    receivers: float  # F(A)
    bound: float  # no W has a smaller F


class ScaledObjective:
    """The objective of one solve in its own unit: Γ has mean diagonal 1, and Γ and λ are divided by 1 + λ.

    Args:
        near, tree: the way to the neighbors, and to all.
        M: Metropolis-Hastings weights, (E,).
        blocks: Γ on the neighborhoods.
        regularization: λ.
        symmetric: whether W = Wᵀ, which makes a better bound.
    """

    def __init__(
        self,
        near: Neighborhoods,
        tree: TreeSweeps,
        M: FloatArray,
        blocks: Blocks,
        regularization: float,
        symmetric: bool,
    ) -> None:
        self._near, self._tree, self._usual, self.n = near, tree, M, near.graph.n
        self._symmetric = symmetric
        loop = np.zeros_like(M)
        loop[self._near.loops] = 1.0
        self._Gamma = blocks
        told = np.column_stack([self._quadratic(loop, loop), self._quadratic(M, M), self._near.sums(M * M)])
        trace, usual, norm = (float(total) for total in self._tree.total(told))
        self.scale = trace / self.n
        # Γ = 0 says nothing about the data: any λ > 0 then gives the W of smallest norm.
        penalty = 1.0 if self.scale == 0 else max(regularization, TIE_BREAK)
        self._shrink, self.penalty = 1 / (1 + penalty), penalty / (1 + penalty)
        self._Gamma = [block / (self.scale or 1.0) * self._shrink for block in blocks]
        self.usual_error = usual
        self._usual_quadratic = usual / (self.scale or 1.0) * self._shrink
        self.usual_total = self._usual_quadratic + self.penalty * norm
        self._there = self._near.filled(np.ones_like(M))
        self._solvers: dict[float, list[tuple[FloatArray, FloatArray]]] = {}

    def _quadratic(self, x: FloatArray, y: FloatArray) -> FloatArray:
        """x_jᵀ Γ_j y_j per node, (m,)."""
        result, parts = np.empty(len(self._near.starts)), zip(self._near.filled(x), self._near.filled(y), strict=True)
        for group, Gamma, (left, right) in zip(self._near.groups, self._Gamma, parts, strict=True):
            result[group.nodes] = (left * (Gamma @ right[:, :, None])[:, :, 0]).sum(axis=1)
        return result

    def nearest(self, z: FloatArray, rho: float) -> FloatArray:
        """argmin_a f_j(a) + ρ/2 ‖a − z_j‖² with sum 1, of all nodes.

        With K = (2Γ + 2λ + ρ)⁻¹ it is ρ (K − K𝟏𝟏ᵀK / 𝟏ᵀK𝟏) z + K𝟏 / 𝟏ᵀK𝟏.
        """
        if rho not in self._solvers:
            self._solvers[rho] = [self._solver(*part, rho) for part in zip(self._Gamma, self._there, strict=True)]
        parts = zip(self._solvers[rho], self._near.filled(z), strict=True)
        return self._near.flat([(P @ part[:, :, None])[:, :, 0] + q for (P, q), part in parts])

    def _solver(self, Gamma: FloatArray, there: FloatArray, rho: float) -> tuple[FloatArray, FloatArray]:
        K = np.linalg.inv(2 * Gamma + (2 * self.penalty + rho) * np.eye(Gamma.shape[1]))
        k = (K @ there[:, :, None])[:, :, 0]
        q = k / k.sum(axis=1, keepdims=True)
        return rho * (K - k[:, :, None] * q[:, None, :]), q

    def judge(self, found: Candidate, a: FloatArray, y: FloatArray) -> Verdict:
        """What all nodes know of a candidate R after one sweep."""
        near, M, R = self._near, self._usual, found.heard
        negative = found.sent < 0
        needed = np.where(negative, -found.sent / np.where(negative, M - found.sent, 1.0), 0.0)
        f_a = self._quadratic(a, a) + self.penalty * near.sums(a * a)
        y_sent = near.across(y)
        y_sent = (y + y_sent) / 2 if self._symmetric else y_sent
        told = [
            *(self._quadratic(R, R), self._quadratic(R, M), near.sums(R * R), near.sums(R * M), near.sums(M * M)),
            *(f_a, f_a + near.sums(y * a) - near.largest(y_sent), near.largest(needed)),
        ]
        totals = self._tree.total(np.column_stack(told), maxima=1)
        RR, RM, rr, rm, mm, F_a, bound, theta = (float(total) for total in totals)
        keep = 1 - theta
        error = max(keep**2 * RR + 2 * keep * theta * RM + theta**2 * self._usual_quadratic, 0.0)
        norm = keep**2 * rr + 2 * keep * theta * rm + theta**2 * mm
        return Verdict(theta, error + self.penalty * norm, error / self._shrink * self.scale, F_a, bound)

    def reference(self, bound: float, tolerance: float) -> float:
        """What a gap is compared with: at most the optimum, if that is not near 0; ‖W − J‖²_F is ‖W‖²_F − 1."""
        least = TIE_BREAK * self.n / tolerance
        return max(bound - self.penalty, _NEAR_ZERO * (self.usual_total - self.penalty), least)


class Steering:
    """Chooses ρ: a larger one closes the part of the gap above F(A) faster, a smaller one the part below.

    Steps up and down in turn would never end, so each turn makes the next ones smaller.
    """

    def __init__(self) -> None:
        self._step, self._last = 1.0, 0  # log₂ of the factor; the last direction

    def next_penalty(self, rho: float, verdict: Verdict) -> float:
        """ρ until the next test."""
        above, below = abs(verdict.total - verdict.receivers), verdict.receivers - verdict.bound
        direction = 1 if above > _BALANCE * below else -1 if below > _BALANCE * above else 0
        if direction == -self._last != 0:
            self._step *= _CALMER
        self._last = direction or self._last
        return min(max(rho * 2 ** (direction * self._step), _PENALTIES[0]), _PENALTIES[1])
