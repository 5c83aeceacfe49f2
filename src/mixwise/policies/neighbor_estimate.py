"""What nodes know of their neighbors' updates, and the weights that they find without knowing more (solver: local).

Legend: m nodes owned here, with neighborhoods of at most `width` nodes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mixwise.graphs import Graph
from mixwise.mixing import GmeSolution
from mixwise.mixing.matrix import FloatArray
from mixwise.mixing.neighbor_gme import MAX_ITERATIONS, NeighborGme, Start, check_limits
from mixwise.mixing.neighbor_objective import Blocks
from mixwise.network import Network
from mixwise.policies.gram import Estimate, Objective
from mixwise.policies.plan import Observation, PolicyState
from mixwise.sketch import Sketch


class NeighborEstimate(Estimate):
    """Γ on each neighborhood, from the neighbors' sketches and the mean sketch; no node sees more.

    Args:
        sketch, objective, smoothing, balance: see `Estimate`.
        tolerance: how far from the optimum a solve may stop, relative to it.
        max_iterations: after how many iterations it stops anyway, and says so.

    A solve begins where the last one ended; as long as the updates do not change much, it ends soon.
    """

    def __init__(
        self,
        sketch: Sketch | None,
        objective: Objective = "updates",
        smoothing: float = 0.0,
        balance: float = 0.1,
        *,
        tolerance: float = 1e-3,
        max_iterations: int = MAX_ITERATIONS,
    ) -> None:
        super().__init__(sketch, objective, smoothing, balance)
        self.tolerance, self.max_iterations = check_limits(tolerance, max_iterations)
        self._problem: tuple[Network, NeighborGme] | None = None
        self._blocks: Blocks | None = None
        self._smoothed: FloatArray | None = None  # (m, width, width), the blocks of the last look, if they are needed
        self._start: Start | None = None

    def look(self, t: int, observed: Observation, network: Network) -> None:
        """Sketch, send the sketches to the neighbors, and take the inner products."""
        problem, sketch = self._prepared(network, observed.parameters.device), self.sketch.fresh(t)
        S = _array(sketch(observed.parameters) if self.objective == "parameters" else observed.sketched_updates(sketch))
        k = S.shape[1]
        if self.objective == "both":  # Γ_U + c Γ_X′ is the Gram matrix of the rows (u, √c x)
            S = np.hstack([S, (math.sqrt(self.balance) * _array(sketch(observed.parameters))).astype(S.dtype)])
        previous = None if self.unsettled else self._smoothed  # not if it came from G, which has another unit
        # A warm-up that starts from step size 0 gives U = 0; the gradients tell what the first real update will be.
        blocks = problem.look(S, unless_zero=k)
        self.unsettled = blocks is None
        if blocks is None:
            blocks, previous = problem.look(_array(sketch(observed.gradients))), None
            assert blocks is not None  # nothing was said to be looked for
        if previous is not None:
            s, old = self.smoothing, problem.from_rows(previous)
            blocks = [s * before + (1 - s) * now for before, now in zip(old, blocks, strict=True)]
        self._blocks, self._smoothed = blocks, problem.by_node(blocks) if self.smoothing else None

    def solve(self, regularization: float, symmetric: bool) -> GmeSolution:
        """The weights of the owned nodes for what was seen last."""
        assert self._problem is not None
        assert self._blocks is not None  # somebody has looked
        solution, self._start = self._problem[1].solve(
            self._blocks,
            regularization,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
            symmetric=symmetric,
            start=self._start,
        )
        return solution

    def _prepared(self, network: Network, device: torch.device) -> NeighborGme:
        """The problem on the network's graph; what was known of another graph is forgotten."""
        known = self._problem
        if known is None or known[0] is not network:
            if known is not None and (known[1].graph, known[1].nodes) != (network.graph, network.nodes):
                self._smoothed = self._start = None

            def exchange(messages: npt.NDArray[Any], graph: Graph) -> npt.NDArray[Any]:
                arrived = network.exchange(torch.from_numpy(messages).to(device), graph, cargo="sketches")
                return arrived.cpu().numpy()

            self._problem = known = network, NeighborGme(network.graph, network.nodes, exchange)
        return known[1]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_problem": None}  # it knows the network, which is not copied

    def state(self) -> PolicyState:
        """Where the next solve begins, and what it smooths over, one row per owned node."""
        tensors: dict[str, torch.Tensor] = {}
        if self._start is not None:
            tensors["start.rows"] = torch.from_numpy(self._start.heard)
            tensors["dual.rows"] = torch.from_numpy(self._start.dual)
        if self._smoothed is not None:
            tensors["gram.rows"] = torch.from_numpy(self._smoothed)
        return tensors, {"unsettled": self.unsettled}

    def load_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Go on from there."""
        self.unsettled, self._start = bool(values["unsettled"]), None
        if "start.rows" in tensors:
            self._start = Start(tensors["start.rows"].numpy(), tensors["dual.rows"].numpy())
        self._smoothed = tensors["gram.rows"].numpy() if "gram.rows" in tensors else None


def _array(S: torch.Tensor) -> npt.NDArray[Any]:
    return S.detach().cpu().numpy()
