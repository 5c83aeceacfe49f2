"""Estimates of the nodes' updates and of their Gram matrix Γ from sketches (paper, Algorithm 3).

Legend: m nodes owned here, n in all; S (m, k) sketches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mixwise.graphs import Graph
from mixwise.mixing import GmeProblem, GmeSolution, MixingMatrix, gram_matrix
from mixwise.mixing.matrix import FloatArray
from mixwise.mixing.metrics import error_after_mixing
from mixwise.mixing.neighbor_gme import MAX_ITERATIONS, TOLERANCE, NeighborGme, Start
from mixwise.network.traffic import AGREEMENT
from mixwise.policies.controls import Permuted, permuted, permuted_here
from mixwise.protocols import Context, Look, Network, Plan, Round, State
from mixwise.sketch import CountSketch, ExactSketch, RandomSketch, Sketch

Objective: TypeAlias = Literal["updates", "parameters", "both"]


def seeded(sketch: Sketch, context: Context) -> Sketch:
    """Return the sketch of a run: a random one draws with the seed of the run as well.

    Rows that are no longer than a random sketch are sent themselves, which is shorter and exact.
    """
    if not isinstance(sketch, RandomSketch):
        return sketch
    if context.row_length is not None and context.row_length <= sketch.dim:
        return ExactSketch()
    return replace(sketch, seed=sketch.seed + context.seed)


@dataclass(frozen=True)
class Estimate:
    """The observed rows, their sketches, and Γ from the sketches of all nodes, smoothed over looks.

    Args:
        sketch: how a node's row is compressed; a new operator is drawn at each look, the same on all nodes.
        objective: "updates" U; "parameters", the rows that are really mixed (X′ in D-SGD); or "both":
            Γ_U + c Γ_X′, which have the same unit, for twice the sketches.
        smoothing: share s of the old Γ in Γ ← s Γ + (1 − s) Γ_new; with 0 only the last look counts.
        balance: c of "both".
        control: "permuted": the sketches in another order (`mixwise.policies.controls`).
    """

    sketch: Sketch = CountSketch(100)
    objective: Objective = "updates"
    smoothing: float = 0.0
    balance: float = 0.1
    control: Permuted | None = None

    def init(self, context: Context) -> State:
        """Return the state before the first look.

        "unsettled" says that the last Γ came from G, because U was 0, so that the next mixing should look again.
        """
        scratch = {"sketch": seeded(self.sketch, context), "seed": context.seed}
        return State(shared={"unsettled": False, "gram": None}, scratch=scratch)

    def wants(self, t: int, state: State) -> Look:
        """Return what a look at mixing t takes."""
        return Look(() if self.objective == "parameters" else (state.scratch["sketch"].fresh(t),))

    def observed(self, round: Round, sketch: Sketch) -> torch.Tensor:
        """Return the sketches (m, k) of the updates, or of the parameters if the objective is only about them."""
        return sketch(round.rows) if self.objective == "parameters" else round.sketched_update(sketch)

    def gathered(self, round: Round, state: State, network: Network) -> torch.Tensor:
        """Return the sketches (n, k) of all nodes, of their gradients if nothing has moved."""
        sketch: Sketch = state.scratch["sketch"].fresh(round.t)
        S = self.gather(self.observed(round, sketch), round.t, state, network)
        # A warm-up that starts from learning rate 0 gives U = 0; the gradients tell what the first real update will be.
        state.shared["unsettled"] = not bool(S.any())
        return self.gather(sketch(round.directions), round.t, state, network) if state.shared["unsettled"] else S

    def gather(self, S: torch.Tensor, t: int, state: State, network: Network) -> torch.Tensor:
        """Return the sketches (n, k) of all nodes; of a control, permuted."""
        S = network.gather(S)
        return S if self.control is None else permuted(S, state.scratch["seed"], t)

    def gram(self, round: Round, state: State, network: Network) -> FloatArray:
        """Sketch, gather, and return the inner products Γ (n, n)."""
        previous = None if state.shared["unsettled"] else state.shared["gram"]  # a Γ of gradients has another unit
        Gamma, s = gram_matrix(self.gathered(round, state, network)), self.smoothing
        if state.shared["unsettled"]:
            previous = None
        elif self.objective == "both":
            sketch: Sketch = state.scratch["sketch"].fresh(round.t)
            rows = self.gather(sketch(round.rows), round.t, state, network)
            Gamma = Gamma + self.balance * gram_matrix(rows)
        state.shared["gram"] = Gamma if previous is None else s * previous + (1 - s) * Gamma
        smoothed: FloatArray = state.shared["gram"]
        return smoothed

    def mixed(self, plan: Plan, state: State) -> None:
        """Remember nothing of the weights: the next look sees what they did."""


@dataclass(frozen=True)
class SketchEstimate(Estimate):
    """The gathered sketches, of which GME-opt needs few products; or Γ if it is smaller, or a sum of Gram matrices.

    Of "gram" and "sketches" in the state, one is None; "sketches" is missing while none were kept.
    """

    def look(self, round: Round, state: State, network: Network) -> None:
        """Sketch and gather."""
        if self.smoothing > 0 or self.objective == "both":
            self.gram(round, state, network)
            return
        S = self.gathered(round, state, network)
        if S.shape[1] >= len(S):
            state.shared |= {"gram": gram_matrix(S), "sketches": None}
        else:  # a copy: an exact sketch may be the rows themselves, which mixing changes
            S = S.detach().to("cpu", torch.float64, copy=True)
            state.shared |= {"gram": None, "sketches": S.numpy()}

    def solve(self, graph: Graph, regularization: float, state: State) -> GmeSolution:
        """Return the best weights on a graph for the last look."""
        problem: GmeProblem = state.scratch["problem of"](graph)
        Gamma, S = state.shared["gram"], state.shared.get("sketches")
        return problem.solve(Gamma, regularization) if S is None else problem.solve_sketches(S, regularization)


def relative_error(W: MixingMatrix, state: State) -> float:
    """Return Tr(WᵀΓW) / Tr Γ for the last look of a `SketchEstimate`: the share of the disagreement that W leaves."""
    Gamma, S = state.shared["gram"], state.shared.get("sketches")
    if S is None:
        left, trace = error_after_mixing(Gamma, W), float(np.trace(Gamma))
    else:
        C = S - S.mean(0)
        left, trace = float(np.square(W.incoming @ C).sum()), float(np.square(C).sum())
    return 0.0 if trace == 0 else left / trace


@dataclass(frozen=True)
class NeighborEstimate(Estimate):
    """Γ on each neighborhood, from the neighbors' sketches and the mean sketch; no node sees more (solver: local).

    A solve starts where the last one ended, so that it is short as long as the updates do not change much.

    Args:
        sketch, objective, smoothing, balance, control: see `Estimate`.
        tolerance: how far from the optimum a solve may stop, relative to it.
        max_iterations: the number of iterations after which it stops anyway, and reports so.
    """

    tolerance: float = TOLERANCE
    max_iterations: int = MAX_ITERATIONS

    def look(self, round: Round, state: State, network: Network) -> None:
        """Sketch, send the sketches to the neighbors, and take the inner products."""
        problem = _prepared(state, network, round.X_prime.device)
        sketch: Sketch = state.scratch["sketch"].fresh(round.t)

        def array(S: torch.Tensor) -> npt.NDArray[Any]:
            rows = S.detach().cpu().numpy()
            return rows if self.control is None else permuted_here(rows, network, state.scratch["seed"], round.t)

        S = array(self.observed(round, sketch))
        k = S.shape[1]
        if self.objective == "both":  # Γ_U + c Γ_X′ is the Gram matrix of the rows (u, √c x)
            S = np.hstack([S, (math.sqrt(self.balance) * array(sketch(round.rows))).astype(S.dtype)])
        # A Γ of gradients has another unit; a warm-up that starts from learning rate 0 gives U = 0.
        previous = None if state.shared["unsettled"] else state.rows.get("gram")
        blocks = problem.look(S, unless_zero=k)
        state.shared["unsettled"] = blocks is None
        if blocks is None:
            blocks, previous = problem.look(array(sketch(round.directions))), None
            assert blocks is not None  # only asked not to look if zero
        if previous is not None:
            s, old = self.smoothing, problem.from_rows(previous.numpy())
            blocks = [s * before + (1 - s) * now for before, now in zip(old, blocks, strict=True)]
        state.scratch["blocks"] = blocks
        if self.smoothing:
            state.rows["gram"] = torch.from_numpy(problem.by_node(blocks))

    def solve(self, graph: Graph, regularization: float, state: State) -> GmeSolution:
        """Return the weights of the owned nodes for the last look; `graph` is that of the network."""
        problem: NeighborGme = state.scratch["problem"][1]
        start = Start(state.rows["start"].numpy(), state.rows["dual"].numpy()) if "start" in state.rows else None
        solution, start = problem.solve(
            state.scratch["blocks"], regularization, tolerance=self.tolerance, max_iterations=self.max_iterations,
            symmetric=state.scratch["symmetric"], start=start,
        )  # fmt: skip
        state.rows |= {"start": torch.from_numpy(start.heard), "dual": torch.from_numpy(start.dual)}
        return solution


def _prepared(state: State, network: Network, device: torch.device) -> NeighborGme:
    """The problem on the network's graph, set up once."""
    if "problem" not in state.scratch or state.scratch["problem"][0] is not network:

        def exchange(messages: npt.NDArray[Any], graph: Graph) -> npt.NDArray[Any]:
            arrived = network.exchange(torch.from_numpy(messages).to(device), graph, cargo=AGREEMENT)
            return arrived.rows.cpu().numpy()

        state.scratch["problem"] = network, NeighborGme(network.graph, network.nodes, exchange)
    problem: NeighborGme = state.scratch["problem"][1]
    return problem
