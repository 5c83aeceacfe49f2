"""The state of a training run, and one step of it; the same for every task, algorithm and policy.

    G = stochastic gradients at X;  X′ = the optimizer's step on X, or several local ones;  U = X − X′
    plan = the policy's matrices for mixing t;  X⁺ = the algorithm's combination

Legend: X, G, U (m, d), the rows that this process owns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.optim.lr_scheduler import LRScheduler

from mixwise.algorithms import Algorithm
from mixwise.errors import NetworkError, TrainingError
from mixwise.network import Network
from mixwise.network.survivors import keep_counting
from mixwise.policies import Plan, Policy
from mixwise.tasks import Task
from mixwise.train.counts import check_counts
from mixwise.train.finite import check_initial, check_losses, check_parameters
from mixwise.train.mixer import Mixer, below
from mixwise.train.optimizers import check_elementwise, clip_rows, fuse_where_safe
from mixwise.train.row_steps import LONG, step_rows

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
        network: who talks to whom, and which rows are here; its traffic is counted from 0.
        policy: the weights of each mixing; the run copies it, so that the same object can be passed to several runs.
        algorithm: what is mixed; copied as well.
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
        check_counts(local_steps=local_steps)
        self.task, self.network, self.clip, self.local_steps = task, network, clip, local_steps
        network.traffic.reset()
        self.t = 0
        self.survives = False  # whether rows must outlive a mixing that fails because a process is lost
        self.X = task.initial(network.nodes)
        check_initial(self.X, network.nodes)
        # One parameter per block of columns, each a view of X: what the optimizer does to it, it does to X.
        self._columns: list[tuple[int, int]] = getattr(task, "blocks", [(0, task.dim)])
        self._blocks = [torch.nn.Parameter(self.X[:, start:stop]) for start, stop in self._columns]
        self._row_by_row = task.dim >= LONG
        self.optimizer = fuse_where_safe(check_elementwise(optimizer(self._blocks)), row_by_row=self._row_by_row)
        self.scheduler = None if scheduler is None else scheduler(self.optimizer)
        algorithm.check_optimizer(self.optimizer, local_steps)
        if getattr(task, "mixed_buffers", None) is not None:
            algorithm.check_buffers()
        self.mixer = Mixer(network, policy, algorithm, local_steps)
        self.policy, self.algorithm = self.mixer.policy, self.mixer.algorithm  # copies, which remember for this run

    @property
    def model_rows(self) -> torch.Tensor:
        """The nodes' models (m, d)."""
        return self.algorithm.model_rows(self.X)

    def step(self) -> Step:
        """Compute and step; then, if the local steps are done, plan and mix."""
        with torch.no_grad():
            return self._step()

    def _step(self) -> Step:
        start = time.perf_counter()
        self.network.step = self.t  # for messages about processes that are missing
        losses, G = self._local_step()
        computed = planned = mixed = time.perf_counter()
        plan = None
        if (self.t + 1) % self.local_steps == 0:
            with self._all_or_nothing():
                plan = self.mixer.plan(self.X, G)
                planned = time.perf_counter()
                self.mixer.mix(self.X, plan, getattr(self.task, "mixed_buffers", None))
            mixed = time.perf_counter()
        self.t += 1
        seconds = {"compute": computed - start, "plan": planned - computed, "mix": mixed - planned}
        return Step(self.t - 1, losses, G, plan, seconds)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A mixing that fails because a process is lost leaves no trace in the rows; the step counts all the same."""
        if not self.survives:
            yield
            return
        rows = [rows for rows in (self.X, getattr(self.task, "mixed_buffers", None)) if rows is not None]
        before = [each.clone() for each in rows]  # algorithms may change them before all messages have arrived
        try:
            yield
        except NetworkError:
            for each, safe in zip(rows, before, strict=True):
                each.copy_(safe)
            self.t += 1
            raise

    def _local_step(self) -> tuple[torch.Tensor, torch.Tensor]:
        """One step of the optimizer on every owned row."""
        t, X = self.t, self.X
        begins, early = t % self.local_steps == 0, self.algorithm.mixes_early
        if begins and early:  # its rows travel while the gradients are computed
            self.mixer.remember(X)
        with torch.enable_grad():
            losses, G = self.task.losses_and_gradients(X, self.network.nodes, t)
        G = G.contiguous()  # the fused kernels take its memory as one piece, also if it is not
        check_losses(losses, self.network.nodes, t)
        if self.clip is not None:
            clip_rows(G, self.clip)
        places = ((block, G[:, first:last]) for block, (first, last) in zip(self._blocks, self._columns, strict=True))
        self.mixer.direct(G, self.optimizer, places)
        if begins and not early:  # here, where the memory that the gradients took is free again
            self.mixer.remember(X)
        self.mixer.lr += float(self.optimizer.param_groups[0]["lr"])
        self._step_optimizer(G)
        if self.scheduler is not None:
            self.scheduler.step()
        check_parameters(X, G, self.network.nodes, t)  # here, since a sketch and a mixing pass it on to other nodes
        return losses, G

    def _step_optimizer(self, G: torch.Tensor) -> None:
        if self._row_by_row:
            step_rows(self.optimizer, self._blocks, self._columns, self.X, G)
            return
        for block, (first, last) in zip(self._blocks, self._columns, strict=True):
            block.grad = G[:, first:last]
        self.optimizer.step()

    # --- what a checkpoint holds ---
    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Everything that the next step depends on: tensors by name, and plain values."""
        tensors, values = self.mixer.state()
        tensors["X"] = self.X
        if hasattr(self.task, "state"):
            tensors |= {f"task.{name}": value for name, value in self.task.state().items()}
        optimizer = self.optimizer.state_dict()
        values |= {"t": self.t, "optimizer": {}}
        for index, entries in optimizer["state"].items():
            for name, value in entries.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"optimizer.{index}.{name}"] = value
                else:
                    values["optimizer"][f"{index}.{name}"] = value
        models = self.model_rows
        values["models"] = next(name for name, rows in tensors.items() if rows is models)  # where the models are
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
        self.t = int(values["t"])
        self.mixer.load_state(tensors, values, self.t // self.local_steps, self.X.device)
        self._load_rows(tensors, values)

    @torch.no_grad()
    def take_over(self, tensors: dict[str, torch.Tensor], values: dict[str, Any], t: int) -> None:
        """Go on at step t with the rows and the optimizer of a run of the same nodes on another network.

        What its policy and its algorithm remembered belongs to that network and is forgotten.
        """
        self._load_rows(tensors, values)
        for _ in range(t - int(values["t"])):  # others were ahead
            if self.scheduler is not None:
                self.scheduler.step()
        keep_counting(values["traffic"], values["n"], self.network)
        self.begin_at(t)

    def begin_at(self, t: int) -> None:
        """Begin at step t with the rows that are here."""
        self.t = t
        self.mixer.begin_at(t // self.local_steps)
        if t % self.local_steps:
            self.mixer.remember(self.X)  # in the middle of local steps

    def _load_rows(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """What belongs to the nodes, whatever they talk over."""
        self.X.copy_(tensors["X"])
        if hasattr(self.task, "load_state"):
            self.task.load_state(below("task.", tensors))
        state: dict[int, dict[str, Any]] = {}
        for key, value in {**below("optimizer.", tensors), **values["optimizer"]}.items():
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
