"""What the nodes know of each other's updates: the Gram matrix Γ of their sketches (paper, Algorithm 3)."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import torch

from mixwise.errors import MixingError
from mixwise.mixing import gram_matrix
from mixwise.mixing.matrix import FloatArray
from mixwise.network import Network
from mixwise.policies.plan import Observation, PolicyState
from mixwise.seeding import stream
from mixwise.sketch import CountSketch, Sketch

Objective: TypeAlias = Literal["updates", "parameters", "both"]


class Estimate:
    """What is looked at, and how.

    Args:
        sketch: how a node's row is compressed; a new operator is drawn at each look, the same on all nodes.
        objective: "updates" U; "parameters", the rows that are really mixed (X′ in D-SGD); or "both":
            Γ_U + c Γ_X′, which have the same unit, for twice the sketches.
        smoothing: share s of the old Γ in Γ ← s Γ + (1 − s) Γ_new; 0 forgets at once.
        balance: c of "both".
    """

    def __init__(
        self, sketch: Sketch | None, objective: Objective = "updates", smoothing: float = 0.0, balance: float = 0.1
    ) -> None:
        if not 0 <= smoothing < 1:
            raise MixingError(f"smoothing = {smoothing}; the share of the old Γ lies in [0, 1)")
        if objective not in ("updates", "parameters", "both"):
            raise MixingError(f'objective = {objective!r}; choose "updates", "parameters" or "both"')
        if not (math.isfinite(balance) and balance >= 0):
            raise MixingError(f"balance = {balance}; the weight of the parameters is a finite number, 0 or larger")
        self.sketch = CountSketch(100) if sketch is None else sketch
        self.objective, self.smoothing, self.balance = objective, smoothing, balance
        self.unsettled = False  # the last Γ came from G because U was 0: look again as soon as possible

    def rename_streams(self, name: str) -> None:
        """Draw other operators: those of the part `name` of another policy."""
        self.sketch = self.sketch.fresh(stream(0, name))

    def sketches(self, t: int) -> tuple[Sketch, ...]:
        """The sketch of the updates that a look at mixing t takes."""
        return () if self.objective == "parameters" else (self.sketch.fresh(t),)


class GramEstimate(Estimate):
    """Γ from gathered sketches, smoothed over looks."""

    def __init__(
        self, sketch: Sketch | None, objective: Objective = "updates", smoothing: float = 0.0, balance: float = 0.1
    ) -> None:
        super().__init__(sketch, objective, smoothing, balance)
        self.gram: FloatArray | None = None

    def look(self, t: int, observed: Observation, network: Network) -> FloatArray:
        """Sketch, gather, and take the inner products."""
        sketch = self.sketch.fresh(t)
        looked = sketch(observed.parameters) if self.objective == "parameters" else observed.sketched_updates(sketch)
        S = network.gather(looked)
        previous = None if self.unsettled else self.gram  # not if it came from G, which has another unit
        # A warm-up that starts from step size 0 gives U = 0; the gradients tell what the first real update will be.
        self.unsettled = not bool(S.any())
        if self.unsettled:
            S, previous = network.gather(sketch(observed.gradients)), None
        Gamma, s = gram_matrix(S), self.smoothing
        if self.objective == "both" and not self.unsettled:
            Gamma = Gamma + self.balance * gram_matrix(network.gather(sketch(observed.parameters)))
        self.gram = Gamma if previous is None else s * previous + (1 - s) * Gamma
        return self.gram

    def state(self) -> PolicyState:
        """Γ and whether it came from G."""
        tensors = {} if self.gram is None else {"gram": torch.from_numpy(self.gram.copy())}
        return tensors, {"unsettled": self.unsettled}

    def load_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Go on from there."""
        self.gram = tensors["gram"].numpy() if "gram" in tensors else None
        self.unsettled = bool(values["unsettled"])
