"""Shared by all solvers of GME-opt: constants, the tie-break, and the outcome as a value with a status."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from mixwise.errors import MixingError, SolverError
from mixwise.mixing.matrix import Kind, MixingMatrix

TIE_BREAK = 1e-8  # λ₀ on the scaled Γ: of all optimal W, it picks the one of smallest ‖W‖_F, which mixes the most
TOLERANCE = 1e-3  # of solver="local" by default: how far from the optimum it may stop, relative to the optimum
LARGEST = 1e140  # the largest number in a sketch: its squares, and their sums, must be finite


def tie_broken(regularization: float, scale: float) -> float:
    """The λ that is solved for: at least λ₀, and 1 for Γ = 0, where any λ > 0 gives the W of smallest norm."""
    return 1.0 if scale == 0 else max(regularization, TIE_BREAK)


def check_regularization(regularization: float) -> None:
    """Raise `MixingError` unless λ is finite and not negative."""
    if not (math.isfinite(regularization) and regularization >= 0):
        raise MixingError(f"regularization = {regularization}; λ is a finite number, 0 or larger")


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


def need_doubly(kind: Kind) -> None:
    """Raise `MixingError` unless the weights are doubly stochastic, the only kind that a local solve finds."""
    if kind != "doubly":
        raise MixingError(f'solver="local" finds doubly stochastic weights only; for kind = {kind!r} use solver="auto"')
