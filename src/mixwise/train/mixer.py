"""One mixing after the other: the part of a training step that begins where the optimizer's step ends.

    U = X − X′;  plan = the policy's matrices for mixing t;  X⁺ = the algorithm's combination

The same for nodes in one process, in many, and inside somebody's own loop. A method that mixes early, X⁺ = Wᵀ X − U,
sends X off as soon as it is remembered, with the matrices that the policy made one mixing before.
Legend: X, X′, G, U (m, d), owned rows; B (m, b) their buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, TypeVar

import numpy as np
import torch

from mixwise.algorithms import Algorithm
from mixwise.algorithms.base import mix_rounds, one_channel
from mixwise.errors import MixingError, TrainingError
from mixwise.mixing import MixingMatrix
from mixwise.mixing.matrix import FloatArray
from mixwise.network import Network, Pending
from mixwise.policies import LearnedTopology, Observation, Plan, Policy
from mixwise.policies.plan import StepRows, StepSums
from mixwise.sketch import CountSketch
from mixwise.sketch.base import RandomSketch
from mixwise.train.connected import check_connected
from mixwise.train.waiting import as_matrices, as_tensors

Part = TypeVar("Part", Policy, Algorithm)


class Mixer:
    """What a policy and an algorithm need to know from one mixing to the next.

    It works on copies of both, which are its attributes: one part may serve several runs, and none of them changes it.

    Args:
        network: who talks to whom, and which rows are here.
        policy: the weights of each mixing.
        algorithm: what is mixed.
        local_steps: steps of the optimizer from one mixing to the next.
    """

    def __init__(self, network: Network, policy: Policy, algorithm: Algorithm, local_steps: int = 1) -> None:
        self.network, self.local_steps = network, local_steps
        self.policy, self.algorithm = policy, algorithm = _copied(policy), _copied(algorithm)
        self.t = 0  # mixings done
        self.began = 0  # where policy and algorithm began: later than 0 if nodes were lost, and they began anew
        self.start: torch.Tensor | None = None  # X at the last mixing, while somebody will ask for it
        self._sums: dict[CountSketch, FloatArray] | None = None  # its sketches, where they are enough
        self.lr = 0.0  # the sum of step sizes since the last mixing; whoever steps adds to it
        self._checked: tuple[MixingMatrix, ...] = ()  # the matrices that the algorithm has accepted last
        # For methods that mix early: the rounds of the next mixing; the first has none, so that W = I.
        self._waiting: tuple[MixingMatrix, ...] = (_identity(network),) if algorithm.mixes_early else ()
        self._pending: Pending | None = None  # its first round, under way
        self._counted = False  # whether it is under way already in the traffic of a state that was loaded
        algorithm.check_policy(policy)
        policy.ask(symmetric=algorithm.needs_symmetric, lazy=algorithm.needs_lazy)
        self._check_matrices(policy.known_matrices())
        free = isinstance(policy, LearnedTopology) and not policy.inside  # it looks at no edges of the graph
        if algorithm.mixes_with != "nothing" and not free:
            check_connected(network.graph, policy.known_matrices())

    def remember(self, X: torch.Tensor) -> None:
        """Before the first step after a mixing: keep of X what somebody will ask for; rows can be large."""
        observes = self.policy.observes(self.t - self.began)
        sketches = self.policy.sketches(self.t - self.began) if observes else None
        self._sums = None
        # Count sketches are cheap enough to be taken twice, of X and of X′; then U need never be there as a whole.
        twice = self.local_steps == 1 and self.algorithm.mixes_steps
        if twice and sketches is not None and all(isinstance(sketch, CountSketch) for sketch in sketches):
            self._sums = {sketch: sketch.sums(X) for sketch in sketches if isinstance(sketch, CountSketch)}
        if self.algorithm.needs_previous or (observes and self._sums is None):
            self.start = X.clone()
        if self.algorithm.mixes_early:
            assert self.start is not None  # such methods need it
            self._pending = self.network.start_mix(self.start, self._waiting[0])

    @property
    def turns_gradients(self) -> bool:
        """Whether the algorithm changes gradients before the optimizer sees them."""
        return type(self.algorithm).direction is not Algorithm.direction

    def direct(
        self,
        G: torch.Tensor,
        optimizer: torch.optim.Optimizer,
        places: Iterable[tuple[torch.nn.Parameter, torch.Tensor]],
    ) -> None:
        """Let the algorithm change G, in place, into what the optimizer sees; `places` of its parameters in G.

        Weight decay is part of the stochastic gradient. Where the algorithm has its own momentum, the decay goes
        through it: λx is added before, and taken off after, since the optimizer adds it once more.
        """
        own = self.algorithm.owns_momentum and self.turns_gradients
        decays = (
            {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]} if own else {}
        )
        decayed = [(g, x, decays[id(x)]) for x, g in places if decays.get(id(x))]
        for g, x, decay in decayed:
            g.add_(x, alpha=decay)
        self.algorithm.direction(G, self.network)
        for g, x, decay in decayed:
            g.sub_(x, alpha=decay)

    def plan(self, X: torch.Tensor, G: torch.Tensor) -> Plan:
        """The weights of this mixing, accepted by the algorithm; X is X′ now."""
        t = self.t - self.began
        plan = self._observed_plan(t, X, G) if self.policy.observes(t) else self._made(t, Observation(None, G, X))
        self._check_matrices(plan.matrices)
        if self.algorithm.mixes_early:  # these are for the next mixing; those of this one are under way
            rounds = one_channel(plan, type(self.algorithm).__name__)
            plan, self._waiting = Plan(self._waiting, solve=plan.solve), rounds
        return plan

    def _streams(self, t: int) -> bool:
        """Whether U is only sketched and X stays: then U would be one tensor more, and is made piece by piece."""
        sketches = self.policy.sketches(t) if self._sums is None else None
        stays = self.algorithm.needs_previous and self.algorithm.mixes_steps
        return stays and sketches is not None and all(isinstance(sketch, RandomSketch) for sketch in sketches)

    def _observed_plan(self, t: int, X: torch.Tensor, G: torch.Tensor) -> Plan:
        """For a policy that looks at the updates, or at sketches of them."""
        updates, rows = None, X
        stepped: StepSums | StepRows | None = None if self._sums is None else StepSums(self._sums, X)
        if self.start is not None:
            rows = self.algorithm.rows_to_mix(self.start, X)
        if self.start is not None and self._streams(t):
            stepped = StepRows(self.start, X)
        elif self.start is not None and self._sums is None:
            # The update takes the place of X where the algorithm does not need that any more.
            place = None if self.algorithm.needs_previous else self.start
            updates = self.algorithm.update(self.start, X, place)
            self.start = self.start if self.algorithm.needs_previous else None
        with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is named by the error
            return self._made(t, Observation(updates, G, rows, stepped))

    def _made(self, t: int, observed: Observation) -> Plan:
        try:
            return self.policy.plan(t, observed, self.network)
        except MixingError as error:
            step = self.t if self.network.step is None else self.network.step
            raise TrainingError(f"step {step}: {error}; if the run diverges, lower the step size (lr)") from error

    def mix(self, X: torch.Tensor, plan: Plan, B: torch.Tensor | None = None) -> None:
        """X′ becomes X⁺, in place, and so do the buffers that are to be mixed."""
        before = X if self.start is None else self.start
        if B is not None:
            self.algorithm.mix_buffers(B, plan, self.network)
        if self.algorithm.mixes_early:
            self._mix_early(before, X, plan)
        else:
            mixed = self.algorithm.combine(before, X, plan, self.network, self.lr)
            if mixed is not X:
                X.copy_(mixed)
        self.start, self._sums, self.lr = None, None, 0.0
        self.t += 1

    def _mix_early(self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan) -> None:
        """X⁺ = Wᵀ X − U, where X′ = X − U is. The first round is under way, unless a state was loaded since."""
        pending, self._pending = self._pending, None
        if pending is None:
            with self.network.uncounted() if self._counted else nullcontext():
                pending = self.network.start_mix(X, plan.params[0])
        self._counted = False
        if len(plan.params) == 1:
            pending.move(X_prime)
        else:
            mixed = mix_rounds(pending.wait(), plan.params[1:], self.network, in_place=True)
            X_prime.sub_(X).add_(mixed)

    def _check_matrices(self, matrices: tuple[MixingMatrix, ...]) -> None:
        """Let the algorithm refuse a matrix before it is used; those of the last mixing need no second look."""
        for W in matrices:
            if not any(W is known for known in self._checked):
                self.algorithm.check_weights(W)
        self._checked = matrices

    def begin_at(self, t: int) -> None:
        """Begin after t mixings that others have done, and that policy and algorithm know nothing of."""
        self.t = self.began = t

    # --- what a checkpoint holds ---
    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Everything that the next mixing depends on besides X: tensors by name, and plain values."""
        tensors = {f"algorithm.{name}": rows for name, rows in self.algorithm.state.items()}
        if self.start is not None:  # in the middle of local steps
            tensors["start"] = self.start
        for number, sums in enumerate((self._sums or {}).values()):
            tensors[f"sums.{number}"] = torch.from_numpy(sums)
        policy_tensors, policy_values = self.policy.state()
        tensors |= {f"policy.{name}": value for name, value in policy_tensors.items()}
        waiting, waiting_values = as_tensors(self._waiting)
        tensors |= {f"waiting.{name}": value for name, value in waiting.items()}
        return tensors, {
            "lr": self.lr,
            "began": self.began,
            "traffic": vars(self.network.traffic).copy(),
            "n": self.network.graph.n,
            "policy": policy_values,
            "waiting": waiting_values,
            "under_way": self._pending is not None,
        }

    def load_state(
        self, tensors: dict[str, torch.Tensor], values: dict[str, Any], t: int, device: torch.device
    ) -> None:
        """Go on from such a state, after t mixings."""
        self.t, self.lr, self.began = t, float(values["lr"]), int(values["began"])
        self.start = tensors["start"].to(device) if "start" in tensors else None
        self.algorithm.state.clear()  # the same dictionary: an algorithm around another one shares it
        self.algorithm.state |= {k: v.to(device) for k, v in below("algorithm.", tensors).items()}
        self.policy.load_state(below("policy.", tensors), values["policy"])
        self._sums = None
        if sums := below("sums.", tensors):  # between a step and its mixing
            named = self.policy.sketches(t - self.began) or ()
            taken = dict.fromkeys(sketch for sketch in named if isinstance(sketch, CountSketch))
            self._sums = {sketch: sums[str(number)].numpy() for number, sketch in enumerate(taken)}
        self._waiting = as_matrices(below("waiting.", tensors), values["waiting"], self.network.nodes)
        if self._pending is not None:  # of the state that is left behind; what travels must arrive somewhere
            self._pending.wait()
        self._pending, self._counted = None, bool(values["under_way"])
        vars(self.network.traffic).update(values["traffic"])


def _copied(part: Part) -> Part:
    """A copy that is as the part was handed over, and remembers for one run alone."""
    try:
        return copy.deepcopy(part)
    except TypeError as error:
        name = type(part).__name__
        raise TrainingError(
            f"{name} cannot be copied ({error}), but a run needs a copy of its own; give it a __deepcopy__"
        ) from error


def _identity(network: Network) -> MixingMatrix:
    """Nobody hears anybody."""
    pattern = network.graph.pattern
    return MixingMatrix(network.graph, pattern.rows == pattern.cols)


def below(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with the prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
