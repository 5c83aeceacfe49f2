"""The state of a training run, and one step of it; the same for every task, algorithm and policy.

    G = stochastic gradients at X;  X′ = the optimizer's step on X, or several local ones;  U = X − X′
    plan = the policy's matrices for mixing t;  X⁺ = the algorithm's mixing

Legend: X, G, U (m, d), the rows that this process owns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch.optim.lr_scheduler import LRScheduler

from mixwise.algorithms import DSGD
from mixwise.errors import DivergedError, TrainingError
from mixwise.network import FaultyNetwork
from mixwise.network.guarded import GuardedNetwork, OnBad, Robust, guarded, unguarded
from mixwise.policies.choice import PolicyLike, as_algorithm, policy_for
from mixwise.protocols import Algorithm, Context, Network, Plan, State, Task
from mixwise.state import counts_like
from mixwise.training import checks
from mixwise.training.driver import driver_for
from mixwise.training.optimizers import LONG, check_elementwise, check_steps, clip_rows, fuse_where_safe, step_rows

OptimizerFactory: TypeAlias = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
SchedulerFactory: TypeAlias = Callable[[torch.optim.Optimizer], LRScheduler]


@dataclass(frozen=True)
class Step:
    """The outcome of one step; the gradients are valid until the next one."""

    t: int
    losses: torch.Tensor  # (m,)
    gradients: torch.Tensor  # (m, d), clipped ones where there is `clip`
    plan: Plan | None  # of the mixing; None for local steps
    seconds: dict[str, float]


class Training:
    """A run: its rows, its optimizer, and the driver of its mixings.

    Args:
        task: what is learned; it has as many nodes as the network.
        network: how rows travel; its traffic is counted from 0.
        policy: the weights of each mixing: a policy, a mixing matrix, a name, or a function of the graph.
        algorithm: what is mixed.
        optimizer: makes an element-wise `torch.optim` optimizer for the rows, given as one parameter per group of
            columns (see `Layout`), e.g. `lambda rows: torch.optim.SGD(rows, lr=0.1)`.
        scheduler: makes a learning-rate scheduler, stepped once per step.
        clip: the largest norm of a node's gradient; longer ones are scaled down.
        local_steps: τ, optimizer steps per mixing.
        robust, on_bad: how nodes protect themselves against broken or hostile ones; see `GuardedNetwork`.
        context: seed and placement of the run.
    """

    def __init__(
        self,
        task: Task,
        network: Network,
        policy: PolicyLike,
        algorithm: Algorithm | str | None,
        optimizer: OptimizerFactory,
        *,
        scheduler: SchedulerFactory | None = None,
        clip: float | None = None,
        local_steps: int = 1,
        robust: Robust = "none",
        on_bad: OnBad = "stop",
        context: Context | None = None,
    ) -> None:
        if task.nodes != network.graph.n:
            raise TrainingError(f"the task has {task.nodes} nodes, the graph {network.graph.n}; they must be the same")
        if clip is not None and not (isinstance(clip, Real) and clip > 0):
            raise TrainingError(f"clip = {clip!r}; the largest norm of a gradient is a number above 0")
        checks.check_counts(local_steps=local_steps)
        network = guarded(network, robust, on_bad)
        self.task, self.network, self.clip, self.local_steps = task, network, clip, local_steps
        network.traffic.reset()
        self.t = 0
        self.algorithm = DSGD() if algorithm is None else as_algorithm(algorithm)
        checks.check_guarded(self.algorithm, robust, on_bad)
        self.policy = policy_for(policy, network.graph, self.algorithm.needs)
        self.X = task.initial(network.nodes)
        checks.check_initial(self.X, network.nodes)
        # One parameter per group of columns, each a view of X: what the optimizer does to it, it does to X.
        self._columns = task.layout.groups
        self._groups = [torch.nn.Parameter(self.X[:, start:stop]) for start, stop in self._columns]
        self._row_by_row = task.layout.dim >= LONG
        try:
            made = optimizer(self._groups)
        except AttributeError as error:  # rows.parameters()
            example = "optimizer=lambda rows: torch.optim.SGD(rows, lr=0.1)"
            raise TrainingError(f"optimizer(rows) failed: {error}; rows is a list of parameters: {example}") from error
        check_steps(made, self._groups)
        self.optimizer = fuse_where_safe(check_elementwise(made), row_by_row=self._row_by_row)
        self.scheduler = None if scheduler is None else checks.checked_scheduler(scheduler(self.optimizer))
        checks.check_optimizer(self.algorithm, self.optimizer, local_steps)
        if task.mixed_buffers is not None:
            checks.check_buffers(self.algorithm)
        context = replace(context or Context(network.graph), label_counts=task.label_counts, row_length=task.layout.dim)
        kind = driver_for(self.algorithm)
        self.driver = kind(network, self.policy, self.algorithm, self.X, context, local_steps=local_steps)
        bare = unguarded(network)
        self._faulty = bare if isinstance(bare, FaultyNetwork) else None
        if self._faulty is not None and self._faulty.faults.lose_messages:
            checks.warn_of_faults(self._faulty, self.algorithm, self.policy.matrices(self.driver.policy_state))

    @property
    def models(self) -> torch.Tensor:
        """The nodes' models (m, d)."""
        return self.algorithm.models(self.X, self.driver.algorithm_state)

    @torch.no_grad()
    def step(self) -> Step:
        """Compute and step; then, if the local steps are done, plan and mix."""
        try:
            return self._step()
        except DivergedError as error:
            group = self.optimizer.param_groups[0]
            error.step, error.learning_rate = self.t, float(group.get("initial_lr", group["lr"]))
            raise

    def _step(self) -> Step:
        start = time.perf_counter()
        self.network.begin(self.t)
        losses, G = self._local_step()
        computed = planned = mixed = time.perf_counter()
        plan = None
        if self._mixes:
            B = self.task.mixed_buffers
            round = self.driver.round(self.X, G, B)
            plan = self.driver.plan(round)
            planned = time.perf_counter()
            self.driver.mix(round, plan)
            mixed = time.perf_counter()
        self.t += 1
        seconds = {"compute": computed - start, "plan": planned - computed, "mix": mixed - planned}
        return Step(self.t - 1, losses, G, plan, seconds)

    def _local_step(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Take one step of the optimizer on every owned row."""
        t, X, nodes = self.t, self.X, self.network.nodes
        if self.driver.needs.early:  # the rows travel while the gradients are computed
            self.driver.begin(X)
        with torch.enable_grad():
            losses, G = self.task.losses_and_gradients(X, nodes, t)
        G = G.contiguous()  # the fused kernels assume it
        checks.check_finite("loss", losses, nodes, t)
        if self._faulty is not None:
            self._faulty.hostile.turn_gradients(G)
        if self.clip is not None:
            clip_rows(G, self.clip)
        D = self.driver.directions(G, self.optimizer, lambda D: zip(self._groups, self._blocks(D), strict=True))
        self.driver.begin(X)  # here, where the memory that the gradients took is free again
        self.driver.stepped(float(self.optimizer.param_groups[0]["lr"]))
        self._step_optimizer(D)
        if self.scheduler is not None:
            self.scheduler.step()
        if t == 0 or not self._checked_by_network:
            checks.check_parameters(X, D, nodes, t)  # here, before a sketch passes it on to other nodes
        return losses, G

    @property
    def _mixes(self) -> bool:
        """Whether a mixing follows the step of the optimizer."""
        return (self.t + 1) % self.local_steps == 0

    @property
    def _checked_by_network(self) -> bool:
        """Whether the network checks the rows next: all but one that guards against bad rows reject them as a whole."""
        return self._mixes and self.driver.looks is None and not isinstance(self.network, GuardedNetwork)

    def _blocks(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Return the columns of each group of the optimizer."""
        return [rows] if len(self._columns) == 1 else [rows[:, first:last] for first, last in self._columns]

    def _step_optimizer(self, D: torch.Tensor) -> None:
        if self._row_by_row:
            step_rows(self.optimizer, self._groups, self._columns, self.X, D)
            return
        for group, block in zip(self._groups, self._blocks(D), strict=True):
            group.grad = block
        self.optimizer.step()

    # --- checkpoints ---
    def state(self) -> State:
        """Return everything that the next step depends on."""
        saved = self.optimizer.state_dict()
        optimizer = State()
        for index, entries in saved["state"].items():
            for name, value in entries.items():  # an element-wise one has a number per entry, or one for all
                of_rows = isinstance(value, torch.Tensor) and value.ndim > 0
                (optimizer.rows if of_rows else optimizer.shared)[f"{index}.{name}"] = value
        shared: dict[str, Any] = {"t": self.t}
        # A scheduler changes the learning rate, and some of them momentum and betas.
        shared["groups"] = [_plain_entries(group) for group in saved["param_groups"]]
        if self.scheduler is not None:
            shared["scheduler"] = _plain_entries(self.scheduler.state_dict())
        # Where each parameter lies, so that a model can be taken out of the rows.
        shared["layout"] = [(slot.name, list(slot.shape), slot.start) for slot in self.task.layout.slots]
        parts = {"task": self.task.state(), "optimizer": optimizer, "driver": self.driver.state()}
        return State({"X": self.X}, shared=shared, parts=parts)

    @torch.no_grad()
    def load_state(self, saved: State) -> None:
        """Continue where a run with the same parts was."""
        X = saved.rows["X"]
        if (X.shape, X.dtype) != (self.X.shape, self.X.dtype):
            raise TrainingError(
                f"X is {tuple(X.shape)} of {X.dtype}, expected {tuple(self.X.shape)} of {self.X.dtype}: "
                f"another task, graph or dtype"
            )
        self.t = counts_like({"t": self.t}, saved.shared)["t"]
        self.driver.load_state(saved.parts["driver"], self.X.device)
        self.X.copy_(X)
        self.task.load_state(saved.parts["task"])
        self._load_optimizer(saved)

    def _load_optimizer(self, saved: State) -> None:
        """Load the state of the optimizer and of the scheduler."""
        optimizer = saved.parts["optimizer"]
        state: dict[int, dict[str, Any]] = {}
        for key, value in {**optimizer.rows, **optimizer.shared}.items():
            number, _, name = key.partition(".")
            state.setdefault(int(number), {})[name] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        rows = [block for group in self.optimizer.param_groups for block in group["params"]]
        for index, entries in state.items():  # torch has cast them to the rows' dtype; NAdam keeps a float32 number
            own = self.optimizer.state[rows[index]]
            own.update({k: own[k].to(v.dtype) for k, v in entries.items() if isinstance(v, torch.Tensor)})
        if self.scheduler is not None:
            self.scheduler.load_state_dict(saved.shared["scheduler"])
        for group, options in zip(self.optimizer.param_groups, saved.shared["groups"], strict=True):
            group.update({k: tuple(v) if isinstance(v, list) else v for k, v in options.items() if k != "params"})


def _plain_entries(state: dict[str, Any]) -> dict[str, Any]:
    """The entries that JSON can hold; others, such as functions, come with a new scheduler."""
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
