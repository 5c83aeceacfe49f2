"""CE-GME: mixing weights re-optimized from sketches of the updates while training runs (paper, Algorithms 2 and 3)."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch

from mixwise.errors import MixingError
from mixwise.mixing import GmeProblem, GmeSolution, MixingMatrix, gram_matrix
from mixwise.mixing.matrix import FloatArray
from mixwise.network import Network
from mixwise.policies.fixed import Fixed
from mixwise.policies.plan import Observation, Plan, Policy, PolicyState
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
        self._restored: FloatArray | None = None  # the weights of a checkpoint, not yet a matrix

    def observes(self, t: int) -> bool:
        """At the mixings that optimize, and when the other policy does."""
        if self._is_due(t):
            return True
        return self._others_turn(t) and self.alternate_with is not None and self.alternate_with.observes(t)

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """One round with the optimized weights, or with the other policy's at odd t."""
        if self._restored is not None:
            self.W, self._restored = MixingMatrix(network.graph, self._restored, tolerance=1e-9), None
        solve = self._optimize(t, observed, network) if self._is_due(t) else None
        if self._others_turn(t):
            assert self.alternate_with is not None
            other = self.alternate_with.plan(t, observed, network)
            return Plan(other.params, other.updates, solve)
        assert self.W is not None
        return Plan((self.W,), solve=solve)

    def _others_turn(self, t: int) -> bool:
        return self.alternate_with is not None and t % 2 == 1

    def _is_due(self, t: int) -> bool:
        """Whether mixing t optimizes: at t mod H = 0, and only what will be used."""
        first = self.W is None and self._restored is None
        due = t % self.period == 0 or self._unsettled or first
        # With H = 1 the next mixing optimizes anew before this W had its turn.
        wasted = self._others_turn(t) and (self.period == 1 or self._unsettled)
        return due and not wasted

    def state(self) -> PolicyState:
        """The weights in use, Γ, and the state of the other policy."""
        tensors = {}
        weights = self._restored if self._restored is not None or self.W is None else self.W.weights
        if weights is not None:
            tensors["W"] = torch.from_numpy(weights.copy())
        if self.gram is not None:
            tensors["gram"] = torch.from_numpy(self.gram.copy())
        values: dict[str, Any] = {"unsettled": self._unsettled}
        if self.alternate_with is not None:
            other, values["other"] = self.alternate_with.state()
            tensors |= {f"other.{name}": value for name, value in other.items()}
        return tensors, values

    def load_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Go on with these weights; they become a matrix at the next plan, which knows the graph."""
        self._unsettled = bool(values["unsettled"])
        self._restored = tensors["W"].numpy() if "W" in tensors else None
        self.gram = tensors["gram"].numpy() if "gram" in tensors else None
        if self.alternate_with is not None:
            own = {name.removeprefix("other."): value for name, value in tensors.items() if name.startswith("other.")}
            self.alternate_with.load_state(own, values["other"])

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
        rows = observed.updates if self.objective == "updates" else observed.parameters
        assert rows is not None  # we said that we observe
        S = network.gather(sketch(rows))
        previous = None if self._unsettled else self.gram  # not if it came from G, which has another unit
        # A warm-up that starts from step size 0 gives U = 0; the gradients tell what the first real update will be.
        self._unsettled = not bool(S.any())
        if self._unsettled:
            S, previous = network.gather(sketch(observed.gradients)), None
        Gamma = gram_matrix(S)
        s = self.smoothing
        self.gram = Gamma if previous is None else s * previous + (1 - s) * Gamma
