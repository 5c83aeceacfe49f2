"""Takes one mixing after the other through plan and mix: the part of a step that follows the optimizer.

    driver.begin(X)                   before the first step after a mixing: keep of X what will be needed
    D = driver.directions(G, …)       at every step: what the optimizer sees, which the algorithm may change
    driver.stepped(lr)                after every step
    round = driver.round(X, G)        X is X′ now
    plan = driver.plan(round)         the policy's matrices, checked
    driver.mix(round, plan)           X becomes X⁺

The same for nodes in one process, in many, and inside your own loop. The position inside a round is kept here and
nowhere else. Legend: X, X′, G, D, U (m, d), owned rows; B (m, b) their buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from mixwise.algorithms.dsgd import mix_in_place
from mixwise.algorithms.in_place import call_in_place
from mixwise.errors import DivergedError, MixingError, NotFiniteError, TrainingError
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.mixing.matrix import FloatArray
from mixwise.network.guarded import GuardedNetwork
from mixwise.network.traffic import Pending, message_bytes
from mixwise.network.wire import Wire
from mixwise.protocols import Algorithm, Context, Look, Network, Plan, Policy, Round, State
from mixwise.sketch import CountSketch
from mixwise.state import counts_like
from mixwise.training.checks import (
    arc_off,
    check_connected,
    check_on_graph,
    check_policy,
    check_unchanged,
    check_weights,
)
from mixwise.training.mixing_history import MixingHistory

_POSITION = ("t", "began", "steps", "lr", "begun")  # what a checkpoint holds of a driver besides tensors and states


class Driver:
    """The mixings of one run: its policy and algorithm with their states, and the position inside a round.

    Args:
        network: how rows travel.
        policy: the weights of each mixing.
        algorithm: what is mixed.
        X: the rows before the first step.
        context: placement and seed of the run.
        local_steps: optimizer steps per mixing.

    Attributes:
        t: mixings done.
        began: the mixing at which policy and algorithm began; later than 0 if they restarted because nodes were lost.
        steps: optimizer steps since the last mixing.
        lr: the sum of their learning rates.
        begun: whether the round has begun, so that X at its start is known.
        history: the mixings since the last record.
    """

    def __init__(
        self,
        network: Network,
        policy: Policy,
        algorithm: Algorithm,
        X: torch.Tensor,
        context: Context,
        local_steps: int,
    ) -> None:
        self.needs = algorithm.needs  # once: wrappers derive theirs from those of the algorithm inside
        rows, wire = message_bytes(X, None), message_bytes(X, Wire.of(X, network.wire_dtype))
        links = context.links or network.links
        length = X.shape[1] if context.row_length is None else context.row_length
        context = replace(
            context, needs=self.needs, links=links, row_bytes=rows, wire_bytes=wire, row_length=length
        )  # fmt: skip
        self.network, self.policy, self.algorithm, self.local_steps = network, policy, algorithm, local_steps
        self.t = self.began = self.steps = 0
        self.lr, self.begun = 0.0, False
        self.history = MixingHistory()
        self._X: torch.Tensor | None = None  # X at the start of the round, while it will be needed
        self._sums: dict[CountSketch, FloatArray] = {}  # its sketches, where they suffice
        self._D: torch.Tensor | None = None  # what the optimizer saw last, if the algorithm changes the gradients
        self._checked: tuple[MixingMatrix, ...] = ()  # the matrices that were checked last
        check_policy(algorithm, policy)
        self._own_edges = policy.provides.own_edges
        self.policy_state = policy.init(context.at("policy"))
        self._context = context
        self.restart_algorithm(X)
        known = policy.matrices(self.policy_state)
        self._check(known)
        if self.needs.plan != "nothing" and not self._own_edges:
            check_connected(network.graph, known)

    @property
    def looks(self) -> Look | None:
        """The part of the mixing under way that the policy observes and shares with other nodes, or None."""
        return self.policy.looks(self.t - self.began, self.policy_state)

    @property
    def turns_gradients(self) -> bool:
        """Whether the algorithm changes gradients before the optimizer sees them."""
        return type(self.algorithm).direction is not Algorithm.direction

    # --- a round ---
    def begin(self, X: torch.Tensor) -> None:
        """Keep what the algorithm and the policy will need of X; does nothing if the round has begun."""
        if self.begun:
            return
        self.begun = True
        needs, look = self.needs, self.looks
        kept, self._sums = needs.previous, {}
        if look is not None and (look.sketches or look.update):
            counts = [sketch for sketch in look.sketches if isinstance(sketch, CountSketch)]
            # Count sketches are cheap enough to be taken twice, of X and of X′; then U is never needed as a whole.
            twice = self.local_steps == 1 and not needs.own_update and not look.update
            if twice and len(counts) == len(look.sketches):
                self._sums = {sketch: sketch.sums(X) for sketch in counts}
            else:
                kept = True
        self._X = X.clone() if kept else None

    def directions(
        self,
        G: torch.Tensor,
        optimizer: torch.optim.Optimizer,
        places: Callable[[torch.Tensor], Iterable[tuple[torch.nn.Parameter, torch.Tensor]]],
    ) -> torch.Tensor:
        """Return what the optimizer sees: G, or rows of their own where the algorithm changes the gradients.

        `places` pairs the optimizer's parameters with their columns of such rows. Weight decay is part of the
        stochastic gradient. Where the algorithm has its own momentum, the decay passes through it: λx is added before,
        and removed after, since the optimizer adds it once more.
        """
        if not self.turns_gradients:
            return G
        if self._D is None:
            self._D = torch.empty_like(G)
        D = self._D.copy_(G)
        decays: dict[int, float] = {}
        if self.needs.own_momentum:
            decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
        decayed = [(g, x, decays[id(x)]) for x, g in places(D) if decays.get(id(x))]
        for g, x, decay in decayed:
            g.add_(x, alpha=decay)
        call_in_place(self.algorithm.direction, "G", D, self.algorithm_state, self.network)
        for g, x, decay in decayed:
            g.sub_(x, alpha=decay)
        return D

    def stepped(self, lr: float) -> None:
        """Count a step of the optimizer."""
        self.steps += 1
        self.lr += lr

    def round(self, X: torch.Tensor, G: torch.Tensor, B: torch.Tensor | None = None) -> Round:
        """Return the round whose optimizer steps have led to X and G."""
        t, state = self.t - self.began, self.algorithm_state
        return Round(t, X, G, self._X, self.lr, self._D, B, self.algorithm, state, self._sums)

    def plan(self, round: Round) -> Plan:
        """Return the plan of the policy, accepted by the algorithm."""
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # the error names what comes of it
                plan = self.policy.plan(round, self.policy_state, self.network)
        except MixingError as error:
            step = self.t if self.network.step is None else self.network.step
            if isinstance(error, NotFiniteError):
                lower = f"step {step}: {error}; if the run diverges, lower the learning rate (lr)"
                raise DivergedError(lower, node=error.node, step=step) from error
            raise TrainingError(f"step {step}: {error}") from error
        if self.needs.fixed:
            check_unchanged(self.algorithm, plan.matrices, self._checked)
        self._check(plan.matrices)
        return plan

    def mix(self, round: Round, plan: Plan) -> None:
        """Turn X′ into X⁺, in place, and mix the buffers, if there are any."""
        if round.B is not None and self.needs.buffers == "average":
            round.B.copy_(self.network.average(round.B).expand_as(round.B))
        elif round.B is not None and self.needs.buffers == "plan":
            mix_in_place(round.B, plan.params, self.network)
        self.mix_rows(round, plan)
        self.history.add(plan, self._leaves_graph(plan))
        self.drop_round()
        self.t += 1

    def mix_rows(self, round: Round, plan: Plan) -> None:
        """Turn X′ into X⁺, in place."""
        call_in_place(self.algorithm.mix, "round.X_prime", round, plan, self.algorithm_state, self.network)

    def drop_round(self) -> None:
        """Forget the round, whose mixing is skipped."""
        self._X, self._sums, self.lr, self.steps, self.begun = None, {}, 0.0, 0, False

    def begin_at(self, t: int) -> None:
        """Start after t mixings that policy and algorithm have not seen."""
        self.t = self.began = t

    def restart_algorithm(self, X: torch.Tensor) -> None:
        """Let the algorithm start over at X; the policy continues."""
        self.algorithm_state = self.algorithm.init(X, self._context)

    def _check(self, matrices: tuple[MixingMatrix, ...]) -> None:
        """Reject a matrix that the algorithm cannot use, or that leaves the graph; the last ones are known to fit."""
        for W in matrices:
            if not any(W is known for known in self._checked):
                check_weights(self.algorithm, W)
                if not self._own_edges:
                    check_on_graph(self.network.graph, W)
        self._checked = matrices

    def _leaves_graph(self, plan: Plan) -> bool:
        """Whether a mixing sends along arcs that the graph does not have; all others are rejected."""
        if self.needs.plan == "nothing":  # an average over all nodes
            return not self.network.graph.is_complete
        return self._own_edges and any(_leaves(self.network.graph, W) for W in plan.matrices)

    # --- checkpoints ---
    def state(self) -> State:
        """Return everything that the next mixing depends on besides X."""
        rows = {f"sums.{number}": torch.from_numpy(sums) for number, sums in enumerate(self._sums.values())}
        if self._X is not None:  # inside a round
            rows["start"] = self._X
        shared = {name: getattr(self, name) for name in _POSITION}
        shared |= {"traffic": vars(self.network.traffic).copy(), "n": self.network.graph.n}
        parts = {"policy": self.policy_state, "algorithm": self.algorithm_state, "history": self.history.state()}
        if isinstance(self.network, GuardedNetwork):
            parts["network"] = self.network.state
        return State(rows, shared=shared, parts=parts)

    def load_state(self, saved: State, device: torch.device) -> None:
        """Continue from such a state."""
        shared = saved.shared
        vars(self).update(counts_like({name: getattr(self, name) for name in _POSITION}, shared))
        self.algorithm_state.load(saved.parts["algorithm"].to(device))
        self.policy_state.load(saved.parts["policy"])
        self.history.load(saved.parts["history"])
        self._X = saved.rows["start"].to(device) if "start" in saved.rows else None
        self._sums = {}
        if "sums.0" in saved.rows and (look := self.looks) is not None:
            counts = dict.fromkeys(sketch for sketch in look.sketches if isinstance(sketch, CountSketch))
            self._sums = {sketch: saved.rows[f"sums.{i}"].cpu().numpy() for i, sketch in enumerate(counts)}
        traffic = vars(self.network.traffic)
        traffic.update(counts_like(traffic, shared["traffic"]))
        if isinstance(self.network, GuardedNetwork):
            self.network.state.load(saved.parts["network"])


@lru_cache(maxsize=16)  # most runs use one matrix, or a few in turn
def _leaves(graph: Graph, W: MixingMatrix) -> bool:
    return arc_off(graph, W) is not None


class OverlappingDriver(Driver):
    """A driver for methods that mix while the gradients are computed: X⁺ = Wᵀ X − U.

    X travels as soon as the round has begun, with the matrices that the policy made one mixing before; the first mixing
    has W = I. Arguments as those of `Driver`.
    """

    _rounds: tuple[MixingMatrix, ...] | None = None  # of the next mixing
    _optimized = False  # whether these are optimized weights
    _pending: Pending | None = None  # the first of them, under way
    _counted = False  # whether that round is part of the traffic of a state that was loaded

    @property
    def _waiting(self) -> tuple[MixingMatrix, ...]:
        """The rounds of the next mixing."""
        if self._rounds is None:
            pattern = self.network.graph.pattern
            self._rounds = (MixingMatrix(self.network.graph, pattern.rows == pattern.cols),)
        return self._rounds

    def begin(self, X: torch.Tensor) -> None:
        """Keep X, and send it."""
        if not self.begun:
            super().begin(X)
            assert self._X is not None  # such methods need it
            self._pending = self.network.start_mix(self._X, self._waiting[0])

    def plan(self, round: Round) -> Plan:
        """Return the plan made one mixing before; the new one is for the next mixing."""
        new = super().plan(round)
        plan = Plan(self._waiting, solves=new.solves, optimized=self._optimized)
        self._rounds, self._optimized = new.one_channel(type(self.algorithm).__name__), new.optimized
        return plan

    def mix_rows(self, round: Round, plan: Plan) -> None:
        """Wait for the rows. The first round is under way, unless a state was loaded since."""
        X, X_prime, pending, self._pending = round.before, round.X_prime, self._pending, None
        if pending is None:
            network = self.network.uncounted() if self._counted else self.network
            pending = network.start_mix(X, plan.params[0])
        self._counted = False
        if len(plan.params) == 1:
            pending.move(X_prime)
        else:
            X_prime.sub_(X).add_(mix_in_place(pending.wait(), plan.params[1:], self.network))

    def state(self) -> State:
        """Return the state of the driver, and the matrices of the next mixing."""
        state = super().state()
        under_way = self._pending is not None
        state.shared |= {"waiting": self._waiting, "optimized": self._optimized, "under_way": under_way}
        return state

    def load_state(self, saved: State, device: torch.device) -> None:
        """Continue from such a state."""
        super().load_state(saved, device)
        self._rounds, self._optimized = saved.shared["waiting"], saved.shared["optimized"]
        if self._pending is not None:  # of the state that is left behind; its messages must be received
            self._pending.wait()
        self._pending, self._counted = None, saved.shared["under_way"]


def driver_for(algorithm: Algorithm) -> type[Driver]:
    """Return the kind of driver that an algorithm needs."""
    return OverlappingDriver if algorithm.needs.early else Driver
