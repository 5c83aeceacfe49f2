"""GME-opt as neighbors know it together: the objective with its lower bound, and what speeds up the iteration.

Legend: m nodes owned here; vectors over the E entries of `Neighborhoods`; F, f_j, A, B, Y, ρ as in neighbor_gme.py.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np

from mixwise.mixing.matrix import FloatArray
from mixwise.mixing.neighborhoods import Neighborhoods, TreeSweeps

Blocks: TypeAlias = list[FloatArray]  # Γ on the neighborhoods: (g, D, D) per group

TIE_BREAK = 1e-8  # λ₀ on the scaled Γ: of all optimal W, it picks the one of smallest ‖W‖_F, which mixes the most

_BALANCE = 5.0  # how unequal the two parts of the gap may be before ρ is doubled or halved
_DAMPING = 0.7  # how much smaller a step of ρ is than the one in the other direction before it
_PENALTIES = (2.0**-5, 2.0**10)  # the range of ρ, for Γ of mean diagonal 1; below it, flat directions of F take ages
_NEAR_ZERO = 1e-3  # of the error of Metropolis-Hastings weights: smaller optima need not be told from 0
_STEPS = 10  # K, the steps that a jump looks back
_RIDGE = 1e-8  # of the mean ‖r‖², so that nearly equal steps do not blow up α
_PROGRESS = 0.9  # a jump needs steps that are shorter by this factor than at the last jump


def tie_broken(regularization: float, scale: float) -> float:
    """The λ that is solved for: at least λ₀, and 1 for Γ = 0, where any λ > 0 gives the W of smallest norm."""
    return 1.0 if scale == 0 else max(regularization, TIE_BREAK)


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
        near, tree: how to reach the neighbors, and all nodes.
        M: Metropolis-Hastings weights, (E,).
        blocks: Γ on the neighborhoods.
        regularization: λ.
        symmetric: whether W = Wᵀ is required, which improves the bound.
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
        self._near, self._tree, self._M, self.n = near, tree, M, near.graph.n
        self._symmetric, self._Gamma = symmetric, blocks
        loop = np.zeros_like(M)
        loop[near.loops] = 1.0
        local = np.column_stack([self._quadratic(loop, loop), self._quadratic(M, M), near.sums(M * M)])
        trace, self.usual_error, norm = (float(total) for total in tree.total(local))
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
        totals = self._tree.total(np.column_stack(local), maxima=1)
        RR, RM, rr, rm, mm, F_a, bound, theta = (float(total) for total in totals)
        keep = 1 - theta
        error = max(keep**2 * RR + 2 * keep * theta * RM + theta**2 * self._usual_quadratic, 0.0)
        norm = keep**2 * rr + 2 * keep * theta * rm + theta**2 * mm
        return Verdict(theta, error + self.penalty * norm, error / self._shrink * self.scale, F_a, bound)

    def reference(self, bound: float, tolerance: float) -> float:
        """What a gap is relative to: at most the optimum, unless that is near 0; ‖W − J‖²_F is ‖W‖²_F − 1."""
        least = TIE_BREAK * self.n / tolerance
        return max(bound - self.penalty, _NEAR_ZERO * (self.usual_total - self.penalty), least)


class Steering:
    """Chooses ρ: a larger one closes the part of the gap above F(A) faster, a smaller one the part below.

    Alternating steps up and down would never end, so each change of direction makes the next steps smaller.
    """

    def __init__(self) -> None:
        self._step, self._last = 1.0, 0  # log₂ of the factor; the last direction

    def next_penalty(self, rho: float, verdict: Verdict) -> float:
        """ρ until the next test."""
        above, below = abs(verdict.total - verdict.receivers), verdict.receivers - verdict.bound
        direction = 1 if above > _BALANCE * below else -1 if below > _BALANCE * above else 0
        if direction == -self._last != 0:
            self._step *= _DAMPING
        self._last = direction or self._last
        return min(max(rho * 2 ** (direction * self._step), _PENALTIES[0]), _PENALTIES[1])


class Jumps:
    """Anderson acceleration of an iteration v ← T(v) by messages between neighbors (Anderson, 1965).

    With r_k = v_{k+1} − v_k, the weights α that sum to 1 and minimize ‖Σ α_k r_k‖ tell where the steps would cancel:
    v = Σ α_k v_{k+1}. This needs only the products ⟨r_k, r_j⟩, which are sums over all nodes.

    Jumps alone could cycle, so one is made only where the steps are shorter than at any jump before. Otherwise the
    plain iteration continues, and converges.
    """

    def __init__(self, near: Neighborhoods, tree: TreeSweeps) -> None:
        self._near, self._tree = near, tree
        self._points: list[FloatArray] = []
        self._limit = math.inf

    def begin_at(self, v: FloatArray) -> None:
        """Forget all points but v: the iteration continues there, perhaps with another T."""
        self._points = [v]

    def add(self, v: FloatArray) -> None:
        """Add the next point of the iteration."""
        self._points = [*self._points[-_STEPS:], v]

    def ahead(self) -> FloatArray | None:
        """The point to jump to, the same at all nodes, or None to continue from the last point."""
        points = np.array(self._points)
        r = np.diff(points, axis=0)
        k, j = np.triu_indices(len(r))
        products = self._tree.total(np.add.reduceat(r[k] * r[j], self._near.starts, axis=1).T)
        R = np.zeros((len(r), len(r)))
        R[k, j] = R[j, k] = products
        length, trace = math.sqrt(R[-1, -1]), float(np.trace(R))
        if not 0 < length < self._limit:
            return None
        self._limit = _PROGRESS * length
        alpha = np.linalg.solve(R / trace + _RIDGE / len(r) * np.eye(len(r)), np.ones(len(r)))
        target: FloatArray = np.zeros_like(points[0])
        for weight, point in zip(alpha / alpha.sum(), points[1:], strict=True):
            target += weight * point  # a matrix product would round differently with other nodes beside them
        return target
