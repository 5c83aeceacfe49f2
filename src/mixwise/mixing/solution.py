"""What a solve of GME-opt reports."""

from __future__ import annotations

from dataclasses import dataclass

from mixwise.errors import SolverError
from mixwise.mixing.matrix import MixingMatrix


@dataclass(frozen=True)
class GmeSolution:
    """The outcome of one solve.

    `residual` is the largest violation (sums, signs) in what the solver returned, before it was rounded to an exactly
    feasible W; of `solver="local"`, how far the objective can be from the optimum, relative to it (`NeighborGme`).
    `W` and `objective` = Tr(WᵀΓW), in the caller's units and without λ, exist only if `solved`.
    """

    candidate: MixingMatrix | None
    objective: float
    status: str
    iterations: int
    seconds: float
    residual: float

    @property
    def solved(self) -> bool:
        """Whether there is a W."""
        return self.candidate is not None

    @property
    def W(self) -> MixingMatrix:  # noqa: N802 - the paper's letter
        """The optimal mixing matrix; an error if the solver did not find it."""
        if self.candidate is None:
            raise SolverError(
                f"GME-opt was not solved: {self.status} after {self.iterations} iterations "
                f'(residual {self.residual:.1e}); keep the previous weights, or try solver="cvxpy"'
            )
        return self.candidate
