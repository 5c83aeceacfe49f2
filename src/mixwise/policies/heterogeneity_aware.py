"""CE-GME: mixing weights re-optimized from sketches of the updates while training runs (paper, Algorithms 2 and 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.mixing import GmeProblem, GmeSolution, MixingMatrix, lazy, uniform_sender
from mixwise.mixing.gme import Solver, check_solver
from mixwise.mixing.matrix import FloatArray, Kind
from mixwise.mixing.metrics import error_after_mixing
from mixwise.mixing.neighbor_gme import MAX_ITERATIONS, need_doubly
from mixwise.network import Network
from mixwise.policies.combined import all_sketches
from mixwise.policies.fixed import as_policy
from mixwise.policies.gram import GramEstimate, Objective
from mixwise.policies.kept_weights import weights_as_tensors, weights_from_tensors
from mixwise.policies.neighbor_estimate import NeighborEstimate
from mixwise.policies.plan import Gives, Observation, Plan, Policy, PolicyState, nested
from mixwise.sketch import Sketch

_PROBLEMS = 64  # laid-out problems that are kept, for graphs that come back


class HeterogeneityAware:
    """Every `period` mixings: sketch the updates, gather the sketches, and solve GME-opt for new weights.

    Args:
        period: H, mixings between two looks at the updates; they happen at t mod H = 0. Inside a policy that leaves out
            some mixings, at the first mixing from there on that it takes part in.
        sketch: how a node's update is compressed; a new operator is drawn at each look, the same on all nodes.
        objective: "updates" (the gradient mixing error of U), "parameters" (the mixing error of X′, the rows that are
            really mixed), or "both": the sum of the two, the parameters counting `balance` times.
        alternate_with: weights, or a policy, for odd t, while even t uses the optimized weights (the paper's
            experiments alternate with Metropolis-Hastings).
        regularization: λ of `minimize_gme`.
        smoothing: share s of the old Γ in Γ ← s Γ + (1 − s) Γ_new; 0 forgets at once.
        symmetric: whether the weights must be symmetric.
        growth: solve only if the relative mixing error Tr(WᵀΓW) / Tr Γ of the weights in use has grown by this factor
            since they were made; without it, at every look.
        drop_below: arcs with a smaller weight are dropped and the rest is optimized again, which saves their messages.
        graphs: a policy whose matrices tell the graph of the moment, for graphs that change over time; the weights are
            solved anew whenever the graph is another one.
        kind: "doubly" stochastic weights, or "sender": only rows sum to 1, for push-sum on directed graphs. The mixing
            error does not see how much mass a node keeps, and left alone drains some nodes; so sender weights are
            averaged with `uniform_sender`. Doubly stochastic weights do better wherever the graph has them.
        solver: of `minimize_gme`. With "local" the sketches are not gathered: they go to neighbors only, who agree on
            the weights by messages, and a process knows the weights of its own nodes only (docs/what-is-revealed.md).
        tolerance, max_iterations: of solver="local", see `minimize_gme`.
    """

    gives: Gives = "weights"
    changes = True

    def __init__(
        self,
        period: int = 1,
        *,
        sketch: Sketch | None = None,
        objective: Objective = "updates",
        alternate_with: MixingMatrix | Policy | None = None,
        regularization: float = 0.0,
        smoothing: float = 0.0,
        balance: float = 0.1,
        symmetric: bool = False,
        growth: float | None = None,
        drop_below: float = 0.0,
        graphs: Policy | None = None,
        kind: Kind = "doubly",
        solver: Solver = "auto",
        tolerance: float = 1e-3,
        max_iterations: int = MAX_ITERATIONS,
    ) -> None:
        if period < 1:
            raise MixingError(f"period = {period}; the weights are optimized every 1, 2, 3, … mixings")
        if growth is not None and not growth >= 1:
            raise MixingError(f"growth = {growth}; the factor by which the mixing error may grow is at least 1")
        if not 0 <= drop_below < 0.5:
            raise MixingError(f"drop_below = {drop_below}; a weight under which an arc is dropped lies in [0, 0.5)")
        check_solver(solver)
        self.period, self.growth, self.drop_below = period, growth, drop_below
        self.graphs = None if graphs is None else nested(graphs, "graphs")
        self.solver: Solver = solver
        self.estimate: GramEstimate | NeighborEstimate
        if solver == "local":
            _check_local(growth=growth, drop_below=drop_below or None, graphs=graphs)
            need_doubly(kind)
            self.estimate = NeighborEstimate(
                sketch, objective, smoothing, balance, tolerance=tolerance, max_iterations=max_iterations
            )
        else:
            self.estimate = GramEstimate(sketch, objective, smoothing, balance)
        self.alternate_with = None if alternate_with is None else nested(as_policy(alternate_with), "alternate_with")
        self.regularization, self.symmetric, self.lazy, self.kind = regularization, symmetric, False, kind
        self.W: MixingMatrix | None = None  # the weights of the last successful optimization
        self._graph: Graph | None = None  # the graph that W was made for
        self._looked = -1  # the mixing of the last look
        self._error = 0.0  # relative mixing error of W when it was made
        self._problems: dict[Graph, GmeProblem] = {}

    @property
    def gram(self) -> FloatArray | None:
        """Γ, smoothed over periods; nobody knows all of it with solver="local"."""
        return self.estimate.gram if isinstance(self.estimate, GramEstimate) else None

    def ask(self, *, symmetric: bool = False, lazy: bool = False) -> None:
        """Make symmetric weights, or (I + W) / 2 of the optimized ones, from now on."""
        self.symmetric, self.lazy = self.symmetric or symmetric, self.lazy or lazy
        for other in self._others():
            other.ask(symmetric=symmetric, lazy=lazy)

    def rename_streams(self, name: str) -> None:
        """Those of the sketches, and of the policies inside."""
        for part in (self.estimate, *self._others()):
            part.rename_streams(name)

    def known_matrices(self) -> tuple[MixingMatrix, ...]:
        """Those that it alternates with."""
        return () if self.alternate_with is None else self.alternate_with.known_matrices()

    def observes(self, t: int) -> bool:
        """At the mixings that look at the updates, and when another policy inside does."""
        if self._is_due(t):
            return True
        if self.graphs is not None and self.graphs.observes(t):
            return True
        return self._others_turn(t) and self.alternate_with is not None and self.alternate_with.observes(t)

    def sketches(self, t: int) -> tuple[Sketch, ...] | None:
        """Its own, if it looks, and those of the policies inside."""
        own = self.estimate.sketches(t) if self._is_due(t) else ()
        inside = all_sketches((policy for policy in self._others() if policy.observes(t)), t)
        return None if inside is None else own + inside

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """One round with the optimized weights, or with the other policy's at odd t."""
        graph = network.graph if self.graphs is None else self._graph_of(self.graphs.plan(t, observed, network))
        looked = self._is_due(t)
        if looked:
            self.estimate.look(t, observed, network)
            self._looked = t
        needed = looked or not self._others_turn(t)
        stale = graph != self._graph or (looked and self._has_grown())
        solve = self._optimize(graph) if needed and stale else None
        if self._others_turn(t):
            assert self.alternate_with is not None
            other = self.alternate_with.plan(t, observed, network)
            return Plan(other.params, other.updates, solve)
        assert self.W is not None
        return Plan((self.W,), solve=solve)

    def _others(self) -> list[Policy]:
        return [policy for policy in (self.alternate_with, self.graphs) if policy is not None]

    def _others_turn(self, t: int) -> bool:
        return self.alternate_with is not None and t % 2 == 1

    def _is_due(self, t: int) -> bool:
        """Whether mixing t looks at the updates: if none has since t mod H = 0, and what it learns will be used."""
        due = t % self.period == 0 or t // self.period > self._looked // self.period or self.estimate.unsettled
        # With H = 1 the next mixing optimizes anew before this W had its turn.
        wasted = self._others_turn(t) and (self.period == 1 or self.estimate.unsettled)
        return due and not wasted

    def _has_grown(self) -> bool:
        """Whether the weights in use fit the updates of now so much worse that new ones are worth a solve."""
        if self.growth is None or self.W is None or self.estimate.unsettled:
            return True
        assert self.gram is not None
        # An error near 0 may grow by any factor and still be nothing.
        return _relative_error(self.gram, self.W) > self.growth * max(self._error, 1e-3)

    @staticmethod
    def _graph_of(plan: Plan) -> Graph:
        if len(plan.params) != 1:
            raise MixingError("`graphs` must be a policy with one matrix per mixing, whose graph is that of the moment")
        return plan.params[0].graph

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_problems": {}}  # a copy lays out its own

    # --- what a checkpoint holds ---
    def state(self) -> PolicyState:
        """The weights in use and their graphs, Γ, and the states of the policies inside."""
        tensors, values = self.estimate.state()
        values |= {"looked": self._looked, "error": self._error, "graph": None, "W": None}
        if self.W is not None and self._graph is not None:
            tensors |= weights_as_tensors(self.W)
            for name, graph in (("W", self.W.graph), ("graph", self._graph)):
                tensors[f"{name}.edges"] = torch.from_numpy(graph.edge_array.copy())
                values[name] = {"n": graph.n, "directed": graph.directed}
        for number, policy in enumerate(self._others()):
            other, values[f"other.{number}"] = policy.state()
            tensors |= {f"other.{number}.{name}": value for name, value in other.items()}
        return tensors, values

    def load_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Go on with these weights."""
        self.estimate.load_state(tensors, values)
        self._looked, self._error = int(values["looked"]), float(values["error"])
        self.W = self._graph = None
        if values["W"] is not None:
            graphs = {
                name: Graph(values[name]["n"], tensors[f"{name}.edges"].numpy(), values[name]["directed"])
                for name in ("W", "graph")
            }
            self.W = weights_from_tensors(tensors, graphs["W"], self.kind)
            self._graph = graphs["graph"]
        for number, policy in enumerate(self._others()):
            own = f"other.{number}."
            part = {name.removeprefix(own): value for name, value in tensors.items() if name.startswith(own)}
            policy.load_state(part, values[f"other.{number}"])

    # --- CE-GME ---
    def _optimize(self, graph: Graph) -> GmeSolution:
        """New weights for Γ. A failed solve keeps the previous ones, if they are for this graph, and is reported."""
        if isinstance(self.estimate, NeighborEstimate):  # always with a W, and with a status
            solution = self.estimate.solve(self.regularization, self.symmetric)
            self.W, self._graph = self._usable(solution.W), graph
            return solution
        assert self.gram is not None
        solution = self._problem(graph).solve(self.gram, self.regularization)
        if solution.usable and self.drop_below > 0:
            solution = self._thinned(solution)
        if solution.usable or self.W is None or graph != self._graph:  # without weights, .W tells what went wrong
            self.W, self._graph = self._usable(solution.W), graph
            self._error = _relative_error(self.gram, self.W)
        return solution

    def _usable(self, W: MixingMatrix) -> MixingMatrix:
        """What the algorithm asked for, or what keeps the mass of every node above 0."""
        if self.kind == "sender":
            even = uniform_sender(W.graph)
            W = MixingMatrix(W.graph, (W.weights + even.weights) / 2, "sender", W.tolerance)
        return lazy(W) if self.lazy else W

    def _thinned(self, solution: GmeSolution) -> GmeSolution:
        """The best weights on the arcs that matter."""
        assert self.gram is not None
        W, pattern = solution.W, solution.W.graph.pattern
        kept = (W.weights >= self.drop_below) & (pattern.rows != pattern.cols)  # an edge: if either direction is
        arcs = np.stack([pattern.rows[kept], pattern.cols[kept]], axis=1)
        thin = Graph(W.n, arcs, directed=W.graph.directed)
        return self._problem(thin).solve(self.gram, self.regularization)

    def _problem(self, graph: Graph) -> GmeProblem:
        if graph not in self._problems:
            if len(self._problems) == _PROBLEMS:
                self._problems.clear()
            self._problems[graph] = GmeProblem(graph, symmetric=self.symmetric, kind=self.kind, solver=self.solver)
        return self._problems[graph]


def _check_local(**options: object) -> None:
    """Refuse what nobody can decide who knows only some of Γ."""
    for name, value in options.items():
        if value is not None:
            raise MixingError(f'{name} needs all of Γ, which no node knows with solver="local"; drop one of the two')


def _relative_error(Gamma: FloatArray, W: MixingMatrix) -> float:
    """Tr(WᵀΓW) / Tr Γ: the share of the disagreement that mixing leaves."""
    trace = float(np.trace(Gamma))
    return 0.0 if trace == 0 else error_after_mixing(Gamma, W) / trace
