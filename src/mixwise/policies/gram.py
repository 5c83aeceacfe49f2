"""What the nodes know of each other's updates: the Gram matrix Γ of their sketches (paper, Algorithm 3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch

from mixwise.mixing import gram_matrix
from mixwise.mixing.matrix import FloatArray
from mixwise.protocols import Context, Network, Round, State
from mixwise.sketch import CountSketch, Sketch
from mixwise.sketch.random import RandomSketch

Objective: TypeAlias = Literal["updates", "parameters", "both"]


@dataclass(frozen=True)
class Estimate:
    """What is observed, and how.

    Args:
        sketch: how a node's row is compressed; a new operator is drawn at each look, the same on all nodes.
        objective: "updates" U; "parameters", the rows that are really mixed (X′ in D-SGD); or "both":
            Γ_U + c Γ_X′, which have the same unit, for twice the sketches.
        smoothing: share s of the old Γ in Γ ← s Γ + (1 − s) Γ_new; with 0 only the last look counts.
        balance: c of "both".
    """

    sketch: Sketch = CountSketch(100)
    objective: Objective = "updates"
    smoothing: float = 0.0
    balance: float = 0.1

    def init(self, context: Context) -> State:
        """Return the state before the first look.

        "unsettled" says that the last Γ came from G, because U was 0, so that the next mixing should look again.
        """
        sketch = self.sketch
        if isinstance(sketch, RandomSketch):
            sketch = replace(sketch, seed=sketch.seed + context.seed)
        return State(shared={"unsettled": False}, scratch={"sketch": sketch})

    def sketches(self, t: int, state: State) -> tuple[Sketch, ...]:
        """Return the sketches of the update that a look at mixing t takes."""
        return () if self.objective == "parameters" else (state.scratch["sketch"].fresh(t),)

    def observed(self, round: Round, sketch: Sketch) -> torch.Tensor:
        """Return the sketches (m, k) of the updates, or of the parameters if the objective is only about them."""
        return sketch(round.rows) if self.objective == "parameters" else round.sketched_update(sketch)


@dataclass(frozen=True)
class GramEstimate(Estimate):
    """Γ from gathered sketches, smoothed over looks."""

    def init(self, context: Context) -> State:
        """Return the state before the first look."""
        state = super().init(context)
        state.shared["gram"] = None
        return state

    def look(self, round: Round, state: State, network: Network) -> FloatArray:
        """Sketch, gather, and return the inner products Γ (n, n)."""
        sketch: Sketch = state.scratch["sketch"].fresh(round.t)
        S = network.gather(self.observed(round, sketch))
        previous = None if state.shared["unsettled"] else state.shared["gram"]  # a Γ of gradients has another unit
        # A warm-up that starts from learning rate 0 gives U = 0; the gradients tell what the first real update will be.
        unsettled = state.shared["unsettled"] = not bool(S.any())
        if unsettled:
            S, previous = network.gather(sketch(round.G)), None
        Gamma, s = gram_matrix(S), self.smoothing
        if self.objective == "both" and not unsettled:
            Gamma = Gamma + self.balance * gram_matrix(network.gather(sketch(round.rows)))
        state.shared["gram"] = Gamma if previous is None else s * previous + (1 - s) * Gamma
        smoothed: FloatArray = state.shared["gram"]
        return smoothed
