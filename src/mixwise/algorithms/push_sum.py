"""Push-sum, or stochastic gradient push: gossip on directed graphs whose columns cannot be made to sum to 1.

    numerators P = w X − U;  P⁺ = Wᵀ P;  w⁺ = Wᵀ w  (w = 1 at first);  X⁺ = P⁺ / w⁺         (Assran et al. 2019)

Averages of this kind are due to Kempe et al. 2003. With `W.T @ P` mass is conserved when each row of W sums to 1:
`kind="sender"`. The rows X = P / w are the models.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mixwise.errors import TrainingError
from mixwise.parts import part
from mixwise.protocols import Algorithm, Context, Needs, Network, Plan, Round, State


@part(
    "push-sum", title="push-sum", cite="Kempe et al. 2003; Assran et al. 2019",
    step="X⁺ = WᵀP / Wᵀw", mixes="P = wX − U, and w", sends="deg · (d + 1 number)",
    condition="rows sum to 1; may be directed",
)  # fmt: skip
@dataclass(frozen=True)
class PushSum(Algorithm):
    """Stochastic gradient push; one more number per message than D-SGD."""

    needs = Needs(previous=True, doubly=False, buffers="own")

    def init(self, X: torch.Tensor, context: Context) -> State:
        """Start with mass 1 on every node."""
        return State(rows={"mass": torch.ones(len(X), 1, dtype=torch.float64, device=X.device)})

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Push numerators, buffers and mass, and divide."""
        mass, X = state.rows["mass"].clone(), round.before
        # w X − U = w X − X + X′; exactly X′ where w = 1
        numerators = round.X_prime.addcmul_(X, (mass - 1).to(X.dtype))
        buffers = [] if round.B is None else [round.B.mul_(mass.to(round.B.dtype))]
        for W in plan.one_channel("push-sum"):
            for rows in (numerators, mass, *buffers):
                network.mix(rows, W, out=rows)
        if not bool((mass > 0).all()):
            node = network.nodes[int((mass[:, 0] <= 0).nonzero()[0])]
            raise TrainingError(f"node {node} has pushed all of its mass away; keep a positive weight W[i, i]")
        state.rows["mass"] = mass
        for rows in (numerators, *buffers):
            rows.div_(mass.to(rows.dtype))
