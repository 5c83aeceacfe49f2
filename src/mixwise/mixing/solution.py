"""Shared by all solvers of GME-opt: the checks of their input, the tie-break, and the outcome, which has a status."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import MixingError, NotFiniteError, SolverError
from mixwise.mixing.arrays import Rows, as_float64
from mixwise.mixing.matrix import FloatArray, MixingMatrix

TIE_BREAK = 1e-8  # λ₀ on the scaled Γ: of all optimal W, it picks the one of smallest ‖W‖_F, which mixes the most
LARGEST = 1e140  # the largest number in a sketch: its squares, and their sums, must be finite
_REPAIR = 1e-6  # how far from symmetric positive semidefinite Γ may be, as a fraction of its trace
_REMEDY = "pass G @ G.T of centered rows"


# --- the input ---
def scaled_gram(gram: npt.ArrayLike | torch.Tensor, n: int) -> tuple[FloatArray, float]:
    """Γ (n, n) scaled to mean diagonal 1 and made exactly symmetric positive semidefinite, and the scale."""
    Gamma = as_float64(gram, "the Gram matrix")
    if Gamma.shape != (n, n):
        raise MixingError(f"the Gram matrix has shape {Gamma.shape}, but for {n} nodes it must be ({n}, {n})")
    largest = float(np.abs(Gamma).max())
    if not math.isfinite(largest):
        raise _not_finite(Gamma)
    if largest == 0:
        return Gamma, 0.0
    scale = mean_of(Gamma.diagonal())
    if scale <= 0:
        raise MixingError(f"Tr Γ = {scale * n:.3g}; a Gram matrix has a positive trace: {_REMEDY}")
    Gamma = Gamma / scale
    skew = float((Gamma - Gamma.T).max())  # the difference is antisymmetric: its largest entry is its largest modulus
    if skew > _REPAIR * n:
        difference = f"by up to {skew / n:.1e} · Tr Γ, allowed is {_REPAIR:g}"
        raise MixingError(f"Γ is not symmetric: Γ and Γᵀ differ {difference}; {_REMEDY}")
    if skew > 0:
        Gamma = (Gamma + Gamma.T) / 2
    try:  # positive semidefinite up to a tenth of the tie-break: the program is convex as it is
        shifted = Gamma.copy()
        shifted.flat[:: n + 1] += 0.1 * TIE_BREAK
        np.linalg.cholesky(shifted)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(Gamma)
        if values[0] < -_REPAIR * n:
            smallest = f"{values[0] / n:.1e} · Tr Γ, allowed is {-_REPAIR:g}"
            raise MixingError(f"Γ is indefinite: its smallest eigenvalue is {smallest}; {_REMEDY}") from None
        Gamma = (vectors * values.clip(min=0)) @ vectors.T
    return Gamma, scale


def _not_finite(Gamma: FloatArray) -> NotFiniteError:
    """Return the error about a Γ that is not finite, with the node that is the cause if it can be told."""
    bad = ~np.isfinite(Gamma)
    i = int(bad.sum(axis=1).argmax())  # NaN of node i is in all of row i, and in one entry of the others
    where = f"Γ[{i}, {int(bad[i].argmax())}] = {Gamma[i, bad[i].argmax()]}; a Gram matrix is finite"
    if bad.all():  # centering has spread it
        every = f"{where}: no entry is, so look for NaN in every node's update; gram_matrix(G) names the node"
        return NotFiniteError(every, node=None)
    return NotFiniteError(f"{where}: look for NaN in node {i}'s update", node=i)


def finite_sketches(sketches: Rows, n: int) -> FloatArray:
    """The sketches (n, k) in float64; raise `MixingError` unless there is one per node, and all are finite."""
    S = as_float64(sketches, "sketches")
    if S.ndim != 2 or len(S) != n:
        raise MixingError(f"the sketches have shape {S.shape}, but for {n} nodes it must be ({n}, k), one row per node")
    largest = np.abs(S).max(axis=1, initial=0.0)
    if not largest.max() <= LARGEST:  # NaN fails every comparison, and is the largest for argmax
        node = int(largest.argmax())
        rule = f"numbers of a sketch are finite, and at most {LARGEST:g}"
        remedy = f"look for NaN in node {node}'s update, or use smaller steps"
        found = f"the sketch of node {node} contains ±{largest[node]:.3g}; {rule}: {remedy}"
        raise NotFiniteError(found, node=node)
    return S


def mean_of(diagonal: FloatArray) -> float:
    """The mean of the diagonal of Γ, whose sum may be too large for a float."""
    largest = float(np.abs(diagonal).max())
    return float((diagonal / largest).sum()) / len(diagonal) * largest if largest else 0.0


def tie_broken(regularization: float, scale: float) -> float:
    """The λ that is solved for: at least λ₀, and 1 for Γ = 0, where any λ > 0 gives the W of smallest norm."""
    check_regularization(regularization)
    return 1.0 if scale == 0 else max(regularization, TIE_BREAK)


def check_regularization(regularization: float) -> None:
    """Raise `MixingError` unless λ is finite and not negative."""
    if not (math.isfinite(regularization) and regularization >= 0):
        raise MixingError(f"regularization = {regularization}; λ is a finite number, 0 or larger")


# --- the outcome ---
class SolveStatus(StrEnum):
    """How a solve ended; each member is the string that records and log lines show."""

    OPTIMAL = "solved"
    STOPPED_AT_LIMIT = "stopped at the cap"  # feasible weights, further from the optimum than the tolerance
    # The statuses below come without weights.
    NOT_CONVERGED = "iteration limit reached"
    INFEASIBLE = "reported infeasible"
    UNBOUNDED = "reported unbounded"
    NUMERICAL_ERROR = "numerical trouble"
    INVALID = "the solution violates the constraints"
    FAILED = "the solver failed"


@dataclass(frozen=True)
class GmeSolution:
    """The outcome of one solve of GME-opt.

    Attributes:
        weights: the mixing matrix that was found, or None.
        objective: Tr(WᵀΓW) in the caller's units, without the penalty on λ; NaN without weights.
        status: how the solve ended.
        iterations: how many iterations the solver took.
        seconds: wall-clock time.
        residual: the largest violation of a constraint before W was rounded to exactly feasible weights. With
            solver="local", an upper bound of the relative distance between the objective and the optimum.
    """

    weights: MixingMatrix | None
    objective: float
    status: SolveStatus
    iterations: int
    seconds: float
    residual: float

    @property
    def solved(self) -> bool:
        """Whether the weights are optimal, up to the solver's tolerance."""
        return self.status is SolveStatus.OPTIMAL

    @property
    def usable(self) -> bool:
        """Whether there are weights to mix with: optimal ones, or those of a local solve that reached its limit."""
        return self.weights is not None

    @property
    def W(self) -> MixingMatrix:  # noqa: N802 - the paper's letter
        """The mixing matrix that was found; raises `SolverError` if there is none."""
        if self.weights is None:
            raise SolverError(
                f"GME-opt was not solved: {self.status} after {self.iterations} iterations "
                f'(residual {self.residual:.1e}); keep the previous weights, or try solver="cvxpy"'
            )
        return self.weights
