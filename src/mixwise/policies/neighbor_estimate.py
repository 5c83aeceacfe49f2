"""What nodes know of their neighbors' updates, and the weights that follow from that alone (solver: local).

Legend: m nodes owned here, with neighborhoods of at most `width` nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mixwise.graphs import Graph
from mixwise.mixing import GmeSolution
from mixwise.mixing.neighbor_gme import MAX_ITERATIONS, NeighborGme, Start
from mixwise.policies.gram import Estimate
from mixwise.protocols import Network, Round, State
from mixwise.sketch import Sketch


@dataclass(frozen=True)
class NeighborEstimate(Estimate):
    """Γ on each neighborhood, from the neighbors' sketches and the mean sketch; no node sees more.

    A solve starts where the last one ended, so that it is short as long as the updates do not change much.

    Args:
        sketch, objective, smoothing, balance: see `Estimate`.
        tolerance: how far from the optimum a solve may stop, relative to it.
        max_iterations: the number of iterations after which it stops anyway, and reports so.
    """

    tolerance: float = 1e-3
    max_iterations: int = MAX_ITERATIONS

    def look(self, round: Round, state: State, network: Network) -> None:
        """Sketch, send the sketches to the neighbors, and take the inner products."""
        problem = _prepared(state, network, round.X_prime.device)
        sketch: Sketch = state.scratch["sketch"].fresh(round.t)
        S = _array(self.observed(round, sketch))
        k = S.shape[1]
        if self.objective == "both":  # Γ_U + c Γ_X′ is the Gram matrix of the rows (u, √c x)
            S = np.hstack([S, (math.sqrt(self.balance) * _array(sketch(round.rows))).astype(S.dtype)])
        # A Γ of gradients has another unit; a warm-up that starts from learning rate 0 gives U = 0.
        previous = None if state.shared["unsettled"] else state.rows.get("gram")
        blocks = problem.look(S, unless_zero=k)
        state.shared["unsettled"] = blocks is None
        if blocks is None:
            blocks, previous = problem.look(_array(sketch(round.G))), None
            assert blocks is not None  # only asked not to look if zero
        if previous is not None:
            s, old = self.smoothing, problem.from_rows(previous.numpy())
            blocks = [s * before + (1 - s) * now for before, now in zip(old, blocks, strict=True)]
        state.scratch["blocks"] = blocks
        if self.smoothing:
            state.rows["gram"] = torch.from_numpy(problem.by_node(blocks))

    def solve(self, regularization: float, symmetric: bool, state: State) -> GmeSolution:
        """Return the weights of the owned nodes for the last look."""
        _, problem = state.scratch["problem"]
        start = Start(state.rows["start"].numpy(), state.rows["dual"].numpy()) if "start" in state.rows else None
        solution: GmeSolution
        solution, start = problem.solve(
            state.scratch["blocks"],
            regularization,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
            symmetric=symmetric,
            start=start,
        )
        assert start is not None
        state.rows |= {"start": torch.from_numpy(start.heard), "dual": torch.from_numpy(start.dual)}
        return solution


def _prepared(state: State, network: Network, device: torch.device) -> NeighborGme:
    """The problem on the network's graph, set up once."""
    if "problem" not in state.scratch or state.scratch["problem"][0] is not network:

        def exchange(messages: npt.NDArray[Any], graph: Graph) -> npt.NDArray[Any]:
            arrived = network.exchange(torch.from_numpy(messages).to(device), graph, cargo="sketches")
            return arrived.cpu().numpy()

        state.scratch["problem"] = network, NeighborGme(network.graph, network.nodes, exchange)
    problem: NeighborGme = state.scratch["problem"][1]
    return problem


def _array(S: torch.Tensor) -> npt.NDArray[Any]:
    return S.detach().cpu().numpy()
