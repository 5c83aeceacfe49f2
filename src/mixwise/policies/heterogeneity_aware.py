"""CE-GME: mixing weights re-optimized from sketches of the updates while training runs (paper, Algorithms 2 and 3)."""

from __future__ import annotations

from typing import Literal, TypeAlias

from mixwise.errors import MixingError
from mixwise.mixing import GmeProblem, GmeSolution, MixingMatrix, gram_matrix
from mixwise.mixing.matrix import FloatArray
from mixwise.network import Network
from mixwise.policies.fixed import Fixed
from mixwise.policies.plan import Observation, Plan, Policy
from mixwise.sketch import CountSketch, Sketch

Objective: TypeAlias = Literal["updates", "parameters"]


class HeterogeneityAware:
    """Every `period` mixings: sketch the updates, gather the sketches, and solve GME-opt for new weights.

    Args:
        period: H, mixings between two optimizations; they happen at t mod H = 0.
        sketch: how a node's update is compressed; a new operator is drawn at each optimization, the same on all nodes.
        objective: "updates" (the gradient mixing error of U), or "parameters" (the mixing error of X′, the rows that
            are really mixed).
        alternate_with: weights, or a policy, for odd t, while even t uses the optimized weights (the paper's
            experiments alternate with Metropolis-Hastings).
        regularization: λ of `minimize_gme`.
        smoothing: share s of the old Γ in Γ ← s Γ + (1 − s) Γ_new; 0 forgets at once.
        symmetric: whether the weights must be symmetric.
    """

    def __init__(
        self,
        period: int = 1,
        *,
        sketch: Sketch | None = None,
        objective: Objective = "updates",
        alternate_with: MixingMatrix | Policy | None = None,
        regularization: float = 0.0,
        smoothing: float = 0.0,
        symmetric: bool = False,
    ) -> None:
        if period < 1:
            raise MixingError(f"period = {period}; the weights are optimized every 1, 2, 3, … mixings")
        if not 0 <= smoothing < 1:
            raise MixingError(f"smoothing = {smoothing}; the share of the old Γ lies in [0, 1)")
        if objective not in ("updates", "parameters"):
            raise MixingError(f'objective = {objective!r}; choose "updates" or "parameters"')
        self.period, self.objective = period, objective
        self.sketch = CountSketch(100) if sketch is None else sketch
        self.alternate_with = Fixed(alternate_with) if isinstance(alternate_with, MixingMatrix) else alternate_with
        self.regularization, self.smoothing, self.symmetric = regularization, smoothing, symmetric
        self.W: MixingMatrix | None = None  # the weights of the last successful optimization
        self.gram: FloatArray | None = None  # Γ, smoothed over periods
        self._unsettled = False  # the last Γ came from G because U was 0: optimize again as soon as possible
        self._problem: GmeProblem | None = None

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """One round with the optimized weights, or with the other policy's at odd t."""
        others_turn = self.alternate_with is not None and t % 2 == 1
        # Optimize only what will be used: with H = 1 the next mixing optimizes anew before this W had its turn.
        wasted = others_turn and (self.period == 1 or self._unsettled)
        due = t % self.period == 0 or self._unsettled or self.W is None
        solve = self._optimize(t, observed, network) if due and not wasted else None
        if others_turn:
            assert self.alternate_with is not None
            other = self.alternate_with.plan(t, observed, network)
            return Plan(other.params, other.updates, solve)
        assert self.W is not None
        return Plan((self.W,), solve=solve)

    def _optimize(self, t: int, observed: Observation, network: Network) -> GmeSolution:
        """CE-GME. A failed solve keeps the previous weights and is reported."""
        self._update_gram(t, observed, network)
        if self._problem is None or self._problem.graph != network.graph:
            self._problem = GmeProblem(network.graph, symmetric=self.symmetric)
        assert self.gram is not None
        solution = self._problem.solve(self.gram, self.regularization)
        if solution.solved or self.W is None:  # without previous weights, .W tells what went wrong
            self.W = solution.W
        return solution

    def _update_gram(self, t: int, observed: Observation, network: Network) -> None:
        sketch = self.sketch.fresh(t)
        S = network.gather(sketch(observed.updates if self.objective == "updates" else observed.parameters))
        previous = None if self._unsettled else self.gram  # not if it came from G, which has another unit
        # A warm-up that starts from step size 0 gives U = 0; the gradients tell what the first real update will be.
        self._unsettled = not bool(S.any())
        if self._unsettled:
            S, previous = network.gather(sketch(observed.gradients)), None
        Gamma = gram_matrix(S)
        s = self.smoothing
        self.gram = Gamma if previous is None else s * previous + (1 - s) * Gamma
