"""CE-GME: mixing weights re-optimized from sketches of the updates while training runs (paper, Algorithms 2 and 3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated

import numpy as np
from annotated_types import Ge, Interval

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.mixing import GmeProblem, GmeSolution, MixingMatrix, lazy, uniform_sender
from mixwise.mixing.gme import Solver, check_solver
from mixwise.mixing.matrix import Kind
from mixwise.mixing.neighbor_gme import MAX_ITERATIONS, TOLERANCE
from mixwise.parts import Count, NonNegative, Unit, part, words
from mixwise.policies.choice import Nested, as_policy
from mixwise.policies.controls import Control, PredictedEstimate
from mixwise.policies.estimates import NeighborEstimate, Objective, SketchEstimate, relative_error
from mixwise.protocols import Context, Look, Network, Plan, Policy, Provides, Round, State
from mixwise.sketch import CountSketch, Sketch


@part(
    "heterogeneity-aware", title="weights optimized from {sketch}", cite="the paper, Algorithms 2 and 3",
    does="weights re-optimized from sketches of the updates",
)  # fmt: skip
@dataclass(frozen=True)
class HeterogeneityAware(Policy):
    """Every `period` mixings: sketch the updates, gather the sketches, and solve GME-opt for new weights.

    Args:
        period: H, mixings between two looks at the updates; they happen at t mod H = 0. Inside a policy that leaves out
            some mixings, at the first mixing from there on that it takes part in.
        sketch: how a node's update is compressed; a new operator is drawn at each look, the same on all nodes. An
            update that is no longer than its sketch would be is sent as it is.
        objective: "updates" (the gradient mixing error of U), "parameters" (the mixing error of X′, the rows that are
            really mixed), or "both": the sum of the two, the parameters counting `balance` times.
        alternate_with: weights, or a policy, for odd t, while even t uses the optimized weights (the paper's
            experiments alternate with Metropolis-Hastings).
        regularization: λ of `minimize_gme`.
        smoothing: share s of the old Γ in Γ ← s Γ + (1 − s) Γ_new; with 0 only the last look counts.
        balance: the weight of the parameters in the objective "both".
        symmetric: whether the weights must be symmetric.
        growth: solve only if the relative mixing error Tr(WᵀΓW) / Tr Γ of the weights in use has grown by this factor
            since they were made; without it, at every look.
        drop_below: arcs with a smaller weight are dropped and the rest is optimized again, which saves their messages.
        graphs: a policy whose matrices tell the graph of the moment, for graphs that change over time; the weights are
            solved again whenever the graph changes.
        stochastic: "doubly" stochastic weights, or "sender": only rows sum to 1, for push-sum on directed graphs. The
            mixing error does not see how much mass a node keeps, and on its own drains some nodes; so sender weights
            are averaged with `uniform_sender`. Doubly stochastic weights do better wherever the graph has them.
        solver: of `minimize_gme`. With "local" the sketches are not gathered: they go to neighbors only, which agree on
            the weights by messages, and a process knows the weights of its own nodes only (docs/what-is-revealed.md).
        tolerance: how far from the optimum the solver may stop, relative to it; by default 1e-3 with solver="local",
            and as close as rounding allows otherwise.
        max_iterations: of solver="local", see `minimize_gme`.
        control: replaces what is seen of the nodes, to tell how much of a gain is due to their data; everything else
            stays. "permuted": the same sketches, in an order redrawn at every look. "predicted": no sketches, but
            Γ⁺ = WᵀΓW + I, which is the same for every objective, from the weights that this policy has planned;
            "predicted-drift": B⁺ = Wᵀ(B + I) and Γ of the rows to be mixed.
    """

    period: Count = 1
    sketch: Sketch = CountSketch(100)
    objective: Objective = "updates"
    alternate_with: Nested | None = None
    regularization: NonNegative = 0.0
    smoothing: Unit = 0.0
    balance: NonNegative = 0.1
    symmetric: bool = False
    growth: Annotated[float, Ge(1)] | None = None
    drop_below: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0
    graphs: Nested | None = None
    stochastic: Kind = "doubly"
    solver: Solver = "auto"
    tolerance: Annotated[float, Interval(gt=0, lt=1)] | None = None
    max_iterations: Count = MAX_ITERATIONS
    control: Control | None = None

    def __post_init__(self) -> None:
        check_solver(self.solver, self.stochastic)
        if self.solver != "local":
            return
        needs = {"growth": self.growth, "drop_below": self.drop_below, "graphs": self.graphs}
        if self.control != "permuted":
            needs["control"] = self.control
        for name, value in needs.items():
            if value:
                raise MixingError(
                    f'{name} needs all of Γ, which no node knows with solver="local"; drop one of the two'
                )

    @property
    def _estimate(self) -> SketchEstimate | NeighborEstimate | PredictedEstimate:
        if self.control is not None and self.control != "permuted":
            return PredictedEstimate(drift=self.control == "predicted-drift")
        options = self.sketch, self.objective, self.smoothing, self.balance, self.control
        if self.solver == "local":
            return NeighborEstimate(*options, self.tolerance or TOLERANCE, self.max_iterations)
        return SketchEstimate(*options)

    def inside(self) -> dict[str, Policy]:
        """Return the nested policies by name."""
        nested = {"alternate_with": self.alternate_with, "graphs": self.graphs}
        return {name: as_policy(policy) for name, policy in nested.items() if policy is not None}

    @property
    def provides(self) -> Provides:
        """Weights that change, on the edges of the graph unless a nested policy has its own."""
        return Provides(own_edges=any(policy.provides.own_edges for policy in self.inside().values()))

    def init(self, context: Context) -> State:
        """Start without weights: the first mixing looks at the updates.

        "graph" is the graph that W was made for, "looked" the mixing of the last look, and "error" the relative mixing
        error of W when it was made.
        """
        state = self._estimate.init(context)
        state.shared |= {"W": None, "graph": None, "looked": -1, "error": 0.0}
        state.parts = {name: policy.init(context.at(name)) for name, policy in self.inside().items()}
        symmetric = self.symmetric or context.needs.symmetric
        problem = partial(
            GmeProblem, symmetric=symmetric, kind=self.stochastic, solver=self.solver, tolerance=self.tolerance
        )
        # Prepared problems are kept, for graphs that come back.
        state.scratch |= {"symmetric": symmetric, "lazy": context.needs.lazy, "problem of": lru_cache(64)(problem)}
        return state

    def matrices(self, state: State) -> tuple[MixingMatrix, ...]:
        """Return the known matrices of the policy that it alternates with."""
        other = self.inside().get("alternate_with")
        return () if other is None else other.matrices(state.parts["alternate_with"])

    def looks(self, t: int, state: State) -> Look | None:
        """Look at the updates every H mixings, and when a nested policy does."""
        own = self._estimate.wants(t, state) if self._is_due(t, state) else None
        active = {name: policy for name, policy in self.inside().items() if name == "graphs" or self._others_turn(t)}
        return Look.together([own, *(policy.looks(t, state.parts[name]) for name, policy in active.items())])

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return one round with the optimized weights, or with the other policy's at odd t."""
        plan = self._planned(round, state, network)
        self._estimate.mixed(plan, state)
        return plan

    def _planned(self, round: Round, state: State, network: Network) -> Plan:
        t, inside, graph = round.t, self.inside(), network.graph
        if "graphs" in inside:
            graph = _graph_of(inside["graphs"].plan(round, state.parts["graphs"], network))
        looked = self._is_due(t, state)
        if looked:
            self._estimate.look(round, state, network)
            state.shared["looked"] = t
        needed = looked or not self._others_turn(t)
        stale = graph != state.shared["graph"] or (looked and self._has_grown(state))
        solves = (self._optimize(graph, state),) if needed and stale else ()
        if self._others_turn(t):
            other = inside["alternate_with"].plan(round, state.parts["alternate_with"], network)
            return replace(other, solves=solves + other.solves)
        return Plan((state.shared["W"],), solves=solves, optimized=True)

    def describe(self) -> str:
        """Say how often weights are optimized, from what, and what they alternate with."""
        often = "at every mixing" if self.period == 1 else f"every {self.period} mixings"
        other = self.inside().get("alternate_with")
        turn = "" if other is None else f", in turn with {words(other)}"
        sources = {"permuted": f"{words(self.sketch)} in a random order", "predicted": "predicted noise"}
        source = sources.get(self.control, "a predicted drift") if self.control else words(self.sketch)
        return f"weights optimized {often} from {source}{turn}"

    # --- when to look, and when to solve ---
    def _others_turn(self, t: int) -> bool:
        return self.alternate_with is not None and t % 2 == 1

    def _is_due(self, t: int, state: State) -> bool:
        """Whether mixing t looks at the updates: if none has since t mod H = 0, and the result will be used."""
        looked, unsettled = state.shared["looked"], state.shared["unsettled"]
        due = t % self.period == 0 or t // self.period > looked // self.period or unsettled
        # With H = 1 the next mixing optimizes again before this W had its turn.
        wasted = self._others_turn(t) and (self.period == 1 or unsettled)
        return due and not wasted

    def _has_grown(self, state: State) -> bool:
        """Whether the weights in use fit the current updates so much worse that new ones are worth a solve."""
        W: MixingMatrix | None = state.shared["W"]
        if self.growth is None or W is None or state.shared["unsettled"]:
            return True
        # An error near 0 may grow by any factor and still be negligible.
        return relative_error(W, state) > self.growth * max(float(state.shared["error"]), 1e-3)

    # --- CE-GME ---
    def _optimize(self, graph: Graph, state: State) -> GmeSolution:
        """Solve for new weights. A failed solve is reported, and keeps the previous ones if they are for this graph."""
        shared, estimate = state.shared, self._estimate
        solution = estimate.solve(graph, self.regularization, state)
        if solution.usable and self.drop_below > 0:
            solution = estimate.solve(self._thinned(solution.W), self.regularization, state)
        if solution.usable or shared["W"] is None or graph != shared["graph"]:
            W = self._usable(solution.W, state)  # without weights, .W says what went wrong
            shared |= {"W": W, "graph": graph, "error": relative_error(W, state) if self.growth else 0.0}
        return solution

    def _usable(self, W: MixingMatrix, state: State) -> MixingMatrix:
        """Return weights that the algorithm can use, or that keep the mass of every node above 0."""
        if self.stochastic == "sender":
            even = uniform_sender(W.graph)
            W = MixingMatrix(W.graph, (W.weights + even.weights) / 2, "sender", W.tolerance)
        return lazy(W) if state.scratch["lazy"] else W

    def _thinned(self, W: MixingMatrix) -> Graph:
        """Return the graph of the arcs that matter."""
        pattern = W.graph.pattern
        kept = (W.weights >= self.drop_below) & (pattern.rows != pattern.cols)  # an edge: if either direction is
        arcs = np.stack([pattern.rows[kept], pattern.cols[kept]], axis=1)
        return Graph(W.n, arcs, directed=W.graph.directed)


def _graph_of(plan: Plan) -> Graph:
    if len(plan.params) != 1:
        raise MixingError("`graphs` must be a policy with one matrix per mixing, whose graph is that of the moment")
    return plan.params[0].graph
