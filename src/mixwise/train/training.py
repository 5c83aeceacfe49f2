"""The state of a training run, and one step of it; the same for every task, algorithm and policy.

    G = stochastic gradients at X;  X′ = the optimizer's step on X, or several local ones;  U = X − X′
    plan = the policy's matrices for mixing t;  X⁺ = the algorithm's combination

Legend: X, G, U (m, d), the rows that this process owns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler

from mixwise.algorithms import Algorithm
from mixwise.errors import MixingError, TrainingError
from mixwise.mixing import MixingMatrix
from mixwise.network import Network
from mixwise.policies import Observation, Plan, Policy
from mixwise.policies.plan import StepSums
from mixwise.sketch import CountSketch
from mixwise.tasks import Task
from mixwise.train.optimizers import check_elementwise, clip_rows, fuse_where_safe

OptimizerFactory: TypeAlias = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
SchedulerFactory: TypeAlias = Callable[[torch.optim.Optimizer], LRScheduler]


@dataclass(frozen=True)
class Step:
    """What happened in one step; G is valid until the next one."""

    t: int
    losses: torch.Tensor  # (m,)
    gradients: torch.Tensor  # (m, d), as the optimizer saw them
    plan: Plan | None  # of the mixing, if there was one: local steps have none
    seconds: dict[str, float]


class Training:
    """A run: its rows, its optimizer, its policy and its algorithm.

    Args:
        task: what is learned; it has as many nodes as the network.
        network: who talks to whom, and which rows are here.
        policy: the weights of each mixing.
        algorithm: what is mixed.
        optimizer: makes an element-wise `torch.optim` optimizer for the rows, given as one parameter per block of
            columns (see `Task`), e.g. `lambda blocks: torch.optim.SGD(blocks, lr=0.1)`.
        scheduler: makes a learning-rate scheduler, stepped once per step.
        clip: largest norm of a node's gradient; longer ones are scaled down.
        local_steps: τ, steps of the optimizer from one mixing to the next.
    """

    def __init__(
        self,
        task: Task,
        network: Network,
        policy: Policy,
        algorithm: Algorithm,
        optimizer: OptimizerFactory,
        *,
        scheduler: SchedulerFactory | None = None,
        clip: float | None = None,
        local_steps: int = 1,
    ) -> None:
        if task.nodes != network.graph.n:
            raise TrainingError(f"the task has {task.nodes} nodes, the graph {network.graph.n}; they must be the same")
        if clip is not None and not clip > 0:
            raise TrainingError(f"clip = {clip}; the largest norm of a gradient is above 0")
        if local_steps < 1:
            raise TrainingError(f"local_steps = {local_steps}; there is at least 1 step from one mixing to the next")
        self.task, self.network, self.policy, self.algorithm, self.clip = task, network, policy, algorithm, clip
        self.local_steps = local_steps
        self.t = 0
        self.X = task.initial(network.nodes)
        # One parameter per block of columns, each a view of X: what the optimizer does to it, it does to X.
        self._columns: list[tuple[int, int]] = getattr(task, "blocks", [(0, task.dim)])
        self._blocks = [torch.nn.Parameter(self.X[:, start:stop]) for start, stop in self._columns]
        self.optimizer = fuse_where_safe(check_elementwise(optimizer(self._blocks)))
        self.scheduler = None if scheduler is None else scheduler(self.optimizer)
        self._start: torch.Tensor | None = None  # X at the last mixing, while somebody will ask for it
        self._sums: StepSums | None = None  # its sketches, where they are enough
        self._lr = 0.0  # the sum of step sizes since the last mixing
        self._checked: tuple[MixingMatrix, ...] = ()  # the matrices that the algorithm has accepted last
        algorithm.check_optimizer(self.optimizer, local_steps)
        algorithm.check_policy(policy)
        if getattr(task, "mixed_buffers", None) is not None:
            algorithm.check_buffers()
        policy.ask(symmetric=algorithm.needs_symmetric, lazy=algorithm.needs_lazy)
        self._check_matrices(policy.known_matrices())

    @property
    def model_rows(self) -> torch.Tensor:
        """The nodes' models (m, d)."""
        return self.algorithm.model_rows(self.X)

    @torch.no_grad()
    def step(self) -> Step:
        """Compute and step; then, if the local steps are done, plan and mix."""
        start = time.perf_counter()
        losses, G = self._local_step()
        computed = planned = mixed = time.perf_counter()
        plan = None
        if (self.t + 1) % self.local_steps == 0:
            plan = self._plan(G)
            planned = mixed = time.perf_counter()
            self._mix(plan)
            mixed = time.perf_counter()
        self.t += 1
        seconds = {"compute": computed - start, "plan": planned - computed, "mix": mixed - planned}
        return Step(self.t - 1, losses, G, plan, seconds)

    def _local_step(self) -> tuple[torch.Tensor, torch.Tensor]:
        """One step of the optimizer on every owned row."""
        t, X = self.t, self.X
        with torch.enable_grad():
            losses, G = self.task.losses_and_gradients(X, self.network.nodes, t)
        G = G.contiguous()  # the fused kernels take its memory as one piece, also if it is not
        self._check_finite(losses, "the loss")
        if self.clip is not None:
            clip_rows(G, self.clip)
        self.algorithm.direction(G, self.network)
        if t % self.local_steps == 0:
            self._remember()
        for block, (first, last) in zip(self._blocks, self._columns, strict=True):
            block.grad = G[:, first:last]
        self._lr += float(self.optimizer.param_groups[0]["lr"])
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self._check_finite(X, "a parameter")  # here, since a sketch and a mixing pass it on to other nodes
        return losses, G

    def _remember(self) -> None:
        """Keep of X what somebody will ask for after the step: rows can be large."""
        observes = self.policy.observes(self._mixing)
        sketches = self.policy.sketches(self._mixing) if observes else None
        self._sums = None
        # Count sketches are cheap enough to be taken twice, of X and of X′; then U need never be there as a whole.
        twice = self.local_steps == 1 and self.algorithm.mixes_steps
        if twice and sketches is not None and all(isinstance(sketch, CountSketch) for sketch in sketches):
            before = {sketch: sketch.sums(self.X) for sketch in sketches if isinstance(sketch, CountSketch)}
            self._sums = StepSums(before, self.X)
        if self.algorithm.needs_previous or (observes and self._sums is None):
            self._start = self.X.clone()

    @property
    def _mixing(self) -> int:
        """The number of the mixing that the current step belongs to."""
        return self.t // self.local_steps

    def _plan(self, G: torch.Tensor) -> Plan:
        updates, rows, observes = None, self.X, self.policy.observes(self._mixing)
        if self._start is not None and observes:
            rows = self.algorithm.rows_to_mix(self._start, self.X)
        if self._start is not None and observes and self._sums is None:
            # The update takes the place of X where the algorithm does not need that any more.
            place = None if self.algorithm.needs_previous else self._start
            updates = self.algorithm.update(self._start, self.X, place)
            self._start = self._start if self.algorithm.needs_previous else None
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is named below
                plan = self.policy.plan(self._mixing, Observation(updates, G, rows, self._sums), self.network)
        except MixingError as error:
            raise TrainingError(f"step {self.t}: {error}; if the run diverges, lower the step size (lr)") from error
        self._check_matrices(plan.matrices)
        return plan

    def _mix(self, plan: Plan) -> None:
        X_before = self.X if self._start is None else self._start
        buffers = getattr(self.task, "mixed_buffers", None)
        if buffers is not None:
            self.algorithm.mix_buffers(buffers, plan, self.network)
        X = self.algorithm.combine(X_before, self.X, plan, self.network, self._lr)
        if X is not self.X:
            self.X.copy_(X)
        self._start, self._lr = None, 0.0

    def _check_matrices(self, matrices: tuple[MixingMatrix, ...]) -> None:
        """Let the algorithm refuse a matrix before it is used; those of the last mixing need no second look."""
        for W in matrices:
            if not any(W is known for known in self._checked):
                self.algorithm.check_weights(W)
        self._checked = matrices

    def _check_finite(self, values: torch.Tensor, what: str) -> None:
        # A sum passes on every NaN and infinity, at a twentieth of the cost of looking at each entry.
        if bool(torch.isfinite(values.sum())):
            return
        finite = torch.isfinite(values).reshape(len(values), -1).all(dim=1)
        if not bool(finite.all()):
            node = self.network.nodes[int((~finite).nonzero()[0])]
            raise TrainingError(
                f"step {self.t}: {what} of node {node} is not finite any more; lower the step size (lr)"
            )

    # --- what a checkpoint holds ---
    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Everything that the next step depends on: tensors by name, and plain values."""
        tensors = {"X": self.X, **{f"algorithm.{name}": rows for name, rows in self.algorithm.state.items()}}
        if self._start is not None:  # in the middle of local steps
            tensors["start"] = self._start
        if hasattr(self.task, "state"):
            tensors |= {f"task.{name}": value for name, value in self.task.state().items()}
        optimizer = self.optimizer.state_dict()
        values: dict[str, Any] = {
            "t": self.t, "lr": self._lr, "traffic": vars(self.network.traffic).copy(), "optimizer": {}
        }  # fmt: skip
        for index, entries in optimizer["state"].items():
            for name, value in entries.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"optimizer.{index}.{name}"] = value
                else:
                    values["optimizer"][f"{index}.{name}"] = value
        models = self.model_rows
        values["models"] = next(name for name, rows in tensors.items() if rows is models)  # where the models are
        policy_tensors, values["policy"] = self.policy.state()
        tensors |= {f"policy.{name}": value for name, value in policy_tensors.items()}
        if self.scheduler is not None:
            values["scheduler"] = _plain_entries(self.scheduler.state_dict())
        # A scheduler changes the learning rate, and some of them momentum and betas.
        values["groups"] = [_plain_entries(group) for group in optimizer["param_groups"]]
        if hasattr(self.task, "layout"):  # which parameter lies where, so that a model can be taken out of the rows
            values["layout"] = [(slot.name, list(slot.shape), slot.start) for slot in self.task.layout.slots]
        return tensors, values

    @torch.no_grad()
    def load_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Go on where a run with the same parts was."""
        X = tensors["X"]
        if (X.shape, X.dtype) != (self.X.shape, self.X.dtype):
            raise TrainingError(
                f"X is {tuple(X.shape)} of {X.dtype}, expected {tuple(self.X.shape)} of {self.X.dtype}: "
                f"another task, graph or dtype"
            )
        self.t, self._lr = int(values["t"]), float(values["lr"])
        self.X.copy_(X)
        self._start = tensors["start"].to(self.X.device) if "start" in tensors else None
        self.algorithm.state.clear()  # the same dictionary: an algorithm around another one shares it
        self.algorithm.state |= {k: v.to(self.X.device) for k, v in _below("algorithm.", tensors).items()}
        if hasattr(self.task, "load_state"):
            self.task.load_state(_below("task.", tensors))
        self.policy.load_state(_below("policy.", tensors), values["policy"])
        vars(self.network.traffic).update(values["traffic"])
        state: dict[int, dict[str, Any]] = {}
        for key, value in {**_below("optimizer.", tensors), **values["optimizer"]}.items():
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        rows = [block for group in self.optimizer.param_groups for block in group["params"]]
        for index, entries in state.items():  # torch has cast them to the rows' dtype; NAdam keeps a float32 number
            own = self.optimizer.state[rows[index]]
            own.update({k: own[k].to(v.dtype) for k, v in entries.items() if isinstance(v, torch.Tensor)})
        if self.scheduler is not None:
            self.scheduler.load_state_dict(values["scheduler"])
        for group, options in zip(self.optimizer.param_groups, values["groups"], strict=True):
            group.update({k: tuple(v) if isinstance(v, list) else v for k, v in options.items() if k != "params"})


def _below(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _plain_entries(state: dict[str, Any]) -> dict[str, Any]:
    """What JSON can hold of a state; the rest, functions and the like, is there in a scheduler made anew."""
    kept = {}
    for name, value in state.items():
        if isinstance(value, list) and all(isinstance(part, dict) for part in value):  # schedulers in a scheduler
            kept[name] = [_plain_entries(part) for part in value]
        elif _is_plain(value):
            kept[name] = value
    return kept


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(part) for part in value)
    return isinstance(value, str | int | float | bool | None)
