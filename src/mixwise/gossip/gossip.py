"""Gossip in your own PyTorch loop: one node per process, the optimizer's step, then mixing with the neighbors.

    U = X − X′, the optimizer's steps since the last mixing;  plan = the policy's matrices;  X⁺ = the algorithm's mixing

The mixing is that of `Training`: hooks on the optimizer keep the driver informed.
Legend: X, G (1, d), the row of this node; B (1, b) its buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from mixwise.errors import NetworkError, TrainingError
from mixwise.gossip import collective
from mixwise.gossip.call_watch import reports, watched
from mixwise.gossip.collective import (
    DONE,
    FAILED,
    WORKING,
    averaged_state,
    metrics,
    statuses,
    told_by_all,
    transport_of,
)
from mixwise.gossip.elastic import Elastic, Place
from mixwise.gossip.log import GossipLog, Logger
from mixwise.gossip.loop_warnings import LoopWarnings
from mixwise.gossip.schedule import learning_rate
from mixwise.gossip.start import Options, Parts, agreed, begin_together, check_graph, connected
from mixwise.gossip.steps import Steps, accumulates
from mixwise.graphs import Graph
from mixwise.network import Link, Links
from mixwise.network.guarded import OnBad, Robust
from mixwise.network.refusal import refuses
from mixwise.network.survivors import restored_on_loss
from mixwise.network.transport import Transport, process_count
from mixwise.policies.choice import PolicyLike
from mixwise.protocols import Algorithm, Context, Plan
from mixwise.tasks.module import BufferPolicy
from mixwise.training.driver import driver_for

Answer = TypeVar("Answer")
Closure = Callable[[], Any] | None


class Gossip:
    """Mixes a model's parameters with those of the neighbors after the optimizer's steps.

    Args:
        model: any module; its trained parameters become views of one row of memory.
        optimizer: any optimizer of its parameters, also as accelerate wraps it.
        graph: the communication graph; node i is rank i.
        policy: the weights of each mixing: a policy, a matrix, a name such as "auto", or a function of the graph.
        algorithm: what is mixed, as an object or by name; D-SGD by default.
        scheduler: a learning-rate schedule, counted in calls of `step()`, which Gossip steps: do not call its `step`.
        local_steps: τ: every τ-th `step()` mixes.
        buffers: such as the statistics of BatchNorm: "local", every node keeps its own; "averaged", they are mixed.
        overlap: let the rows travel while the next gradients are computed (`CombineWhileAdapt`).
        wire_dtype: torch.bfloat16 or torch.int8 rounds the rows for the message; their mean is conserved all the same.
        links: latency and bandwidth of a usual link, if time matters: "auto" then chooses the number of rounds by it.
        timeout: the longest wait for other ranks, in seconds.
        seed: names the random streams of policy and algorithm.
        elastic: continue without ranks that are lost, and take up ranks that are started again (`mixwise launch
            --on-loss continue`); `Gossip` then makes the process group itself. The loop is `while gossip.t < steps`.
        rejoin: model and optimizer of a rank that joins later: those of a "neighbor", or its "own", as passed here.
        robust, on_bad: protection against broken or hostile ranks; see `GuardedNetwork`.
        log: a folder for `mixwise report` and `watch`, or a function of a step and its values; used by rank 0.
        log_every: the mixings from one record of the log to the next.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> gossip = Gossip(model, optimizer, Graph(1, []))         # alone; under torchrun, one node per process
        >>> model(torch.ones(4, 2)).sum().backward()
        >>> gossip.step()
        >>> gossip.t
        1
    """

    @refuses
    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        graph: Graph,
        policy: PolicyLike = "auto",
        algorithm: Algorithm | str | None = None,
        *,
        scheduler: LRScheduler | None = None,
        local_steps: int = 1,
        buffers: BufferPolicy = "local",
        overlap: bool = False,
        wire_dtype: torch.dtype | None = None,
        links: Link | None = None,
        timeout: float = 60.0,
        seed: int = 0,
        elastic: bool = False,
        rejoin: Literal["neighbor", "own"] = "neighbor",
        robust: Robust = "none",
        on_bad: OnBad = "stop",
        log: str | Path | Logger | None = None,
        log_every: int = 50,
    ) -> None:
        def make() -> Parts:
            if not elastic:
                check_graph(graph, process_count())
            return Parts(model, optimizer, graph, policy, algorithm, scheduler, options)

        self._log = None if log is None else GossipLog(log, log_every)
        kept = local_steps, buffers, overlap, wire_dtype, links, seed, elastic, rejoin, robust, on_bad
        options = Options(*kept, None if log is None else log_every)
        alone = process_count() is None
        parts = make() if elastic else agreed(make, None if alone else Transport(None, timeout))
        self.model, self.optimizer, self.local_steps, self.buffers = model, optimizer, local_steps, buffers
        self.row, self.policy, self.algorithm, self.schedule = parts.row, parts.policy, parts.algorithm, parts.schedule
        self.seed, self.links = seed, None if links is None else Links(links)
        self.row.bind()
        self._elastic: Elastic | None = None
        self._calls = self._asked = t = 0  # calls of step(), and of collective methods, since the last mixing
        if elastic:
            self._elastic = Elastic(parts, timeout)
            (t, self._asked), self.network, self.policy = self._elastic.start()
        else:
            self.network = connected(graph, options, timeout)
            self.network.traffic.reset()
            begin_together(self.row, self.network)
        self._make_driver(t)
        self.steps = Steps(optimizer, self.row, self.driver)
        if self._elastic is not None:
            self.steps.on_loss, self.steps.before = self._continue, self._elastic.changes
            self.steps.after = lambda: self._settled()
        self._warnings = LoopWarnings(self, self.rank, self.steps.tally)
        self._has_met = elastic  # other ranks, since they last compared learning rates
        self.plan: Plan | None = None  # the weights of the last mixing
        self._loss: Any = None  # of the last step, if known
        self._joined = self._mixing = False  # inside join(); inside a mixing
        self.watch = watched(None if elastic else transport_of(self.network))  # of every collective call
        self._follow_schedule()
        self._start_early()
        self._settled()

    def _make_driver(self, t: int) -> None:
        kind, context = driver_for(self.algorithm), Context(self.network.graph, seed=self.seed, links=self.links)
        self.driver = kind(self.network, self.policy, self.algorithm, self.row.X, context, local_steps=self.local_steps)
        self.driver.begin_at(t)

    @property
    def t(self) -> int:
        """Mixings done."""
        return self.driver.t

    @property
    def rank(self) -> int:
        """The node of this process; after a loss, its place among the ranks that are left."""
        return self.network.nodes[0]

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that are left, as numbered at the start; this one is at index `rank`."""
        return tuple(range(self.network.graph.n)) if self._elastic is None else self._elastic.members

    # --- one step ---
    @reports
    def step(self, closure: Closure = None, *, scaler: torch.amp.GradScaler | None = None, loss: Any = None) -> Any:
        """Step the optimizer, and mix after every `local_steps` calls, skipped ones included; `loss` is for the log."""
        result = self.steps.take(closure, scaler)
        if not accumulates(self.optimizer):
            self.stepped(result if loss is None else loss)
        return result

    @reports
    def stepped(self, loss: Any = None) -> None:
        """The part of `step` after the optimizer's step, for trainers that step the optimizer themselves."""
        self.steps.count()
        self._loss = loss
        self._calls += 1
        if self._calls >= self.local_steps:
            self.mix()
        self._follow_schedule()

    @reports
    @torch.no_grad()
    def mix(self) -> None:
        """Mix the parameters now; all ranks must mix equally often."""
        self.row.settle()
        if not self.driver.needs.early or self.driver.looks:
            self.row.check_finite(self.t, self.rank)
        self._mix_if(lambda: self._any_works(WORKING) if self._joined else True)

    def _any_works(self, status: int) -> bool:
        """Tell all ranks the status of this one before the next mixing, and return whether any still has data."""
        told = statuses(status, self.driver, self.row, learning_rate(self.steps.optimizer))
        working = {self.members[i]: rate for i, (status, rate) in enumerate(told) if status == WORKING}
        if self.rank == 0:
            self._warnings.compare_rates(working)
        return bool(working)

    def _mix_if(self, wanted: Callable[[], bool]) -> bool:
        """Mix if it is wanted, and return whether it was; a mixing that fails because of a loss is skipped."""
        self.watch.note("join()" if self._joined else "step()")
        if self._elastic is not None:
            self._elastic.changes()
        wants = True
        try:
            with restored_on_loss([self.row.X]) if self._elastic is not None else nullcontext():
                if wants := wanted():
                    self._mix()
        except NetworkError as error:
            self._mixing, self._calls = False, 0
            self._continue(error, (self.t + 1, 0))
        self._follow_schedule()
        self._settled()
        if self._elastic is not None:
            self._elastic.offer()
        return wants

    def _settled(self) -> None:
        """Let a rank that joins take model and optimizer."""
        if self._elastic is not None:
            self._elastic.settled(self.t)

    def _follow_schedule(self) -> None:
        self.schedule.follow(self.t * self.local_steps + self._calls)

    def _continue(self, error: NetworkError, at: Place | None = None) -> None:
        """Continue with the ranks that are present, or raise the error."""
        if self._elastic is None:
            raise error
        (t, self._asked), self.network, self.policy = self._elastic.meet(at or (self.t, self._asked), self.network)
        self.plan, self._has_met = None, True
        self._make_driver(t)
        self.steps.driver = self.driver
        self._follow_schedule()
        self._start_early()
        self._settled()

    def _mix(self) -> None:
        self._mixing = True
        self.steps.tally.mixed += 1
        if self._has_met:
            self._compare("step()")
        self.steps.begin()
        if self.driver.steps == 0:
            self.steps.rest()
        G = self.row.gradients() if self.driver.looks else self.row.X  # only a policy that looks may read it
        B = self.row.buffer_row() if self.buffers == "averaged" else None
        self.network.begin(self.t)
        round = self.driver.round(self.row.X, G, B)
        self.plan = self.driver.plan(round)
        self.driver.mix(round, self.plan)
        if B is not None:
            self.row.put_buffers(B)
        self._mixing, self._calls, self._asked = False, 0, 0
        self.steps.accept()
        self._start_early()
        if self._log is not None:
            self._log.mixed(self)

    def _start_early(self) -> None:
        """Send the rows now, if they travel while the gradients are computed."""
        if self.driver.needs.early:
            self.row.check_finite(self.t, self.rank)  # while it is in the cache
            with suppress(NetworkError):  # others may have finished; otherwise the next mixing fails
                self.steps.begin()

    # --- nodes with different amounts of data ---
    @contextmanager
    def join(self) -> Iterator[None]:
        """Inside, ranks may take different numbers of steps: those that have finished mix until all have."""
        if self._joined:
            raise TrainingError("join() inside join(); one block around the loop is enough")
        self._joined = True
        try:
            yield
            with torch.no_grad():
                self.row.settle()
                self._loss = None  # of a rank that has finished
                # Local steps that were not mixed yet are still to be shared.
                while self._mix_if(lambda: self._any_works(WORKING if self.driver.steps else DONE)):
                    pass
        except Exception as error:
            if not (self._mixing or isinstance(error, NetworkError)):  # else no rank waits for the status
                with suppress(NetworkError):
                    statuses(FAILED, self.driver, self.row, 0.0)
            raise
        finally:
            self._joined = self._mixing = False

    # --- collective calls ---
    @reports
    @torch.no_grad()
    def average(self) -> dict[str, Any]:
        """Return the state dict of the averaged model, the same on every rank; collective, and the model is unchanged.

        Parameters and floating-point buffers are averaged, other buffers are those of rank 0, all else of this rank.
        """
        state = self._answered("average()", lambda: averaged_state(self.row, self._models, self.network))
        if state is None:
            raise NetworkError("a rank was lost when the others had averaged already; call average() again")
        return state

    @reports
    @torch.no_grad()
    def metrics(self) -> dict[str, float]:
        """Loss, consensus distance, mixing error, p, bytes per node; collective. Empty if a rank was lost meanwhile."""
        loss = math.nan if self._loss is None else float(self._loss)
        return self._answered("metrics()", lambda: metrics(self.row, self._models, self.driver, loss)) or {}

    def _answered(self, call: str, question: Callable[[], Answer]) -> Answer | None:
        """The common answer of all ranks; None if a rank was lost when others had it already and have continued."""
        self.watch.note(call)
        while True:
            self.row.settle()
            place = self.t, self._asked
            try:
                self._compare(call)
                answer = question()
            except NetworkError as error:
                self._continue(error)
                if place != (self.t, self._asked):
                    return None
            else:
                self._asked += 1
                return answer

    def _compare(self, call: str) -> None:
        """Let all ranks compare their learning rates and their steps since the last mixing."""
        told = told_by_all(self.network, self.row, learning_rate(self.steps.optimizer), self.driver.steps)
        self._has_met = False
        if self.rank > 0:
            return
        self._warnings.compare_rates({self.members[i]: rate for i, (rate, _) in enumerate(told)})
        if not self._mixing:
            self._warnings.compare_steps(call, [steps for _, steps in told])

    @property
    def _models(self) -> torch.Tensor:
        return self.algorithm.models(self.row.X, self.driver.algorithm_state)

    # --- checkpoints ---
    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank that is not in the state dicts of model and optimizer."""
        return collective.saved(self.driver, self.row, self.schedule, self._calls)

    @reports
    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from such a state, after those of the model and the optimizer are loaded; a collective call."""
        self.watch.note("load_state_dict()")
        self.row.settle()
        self._calls = collective.load(state, self.driver, self.row, self.schedule)
        self.steps.accept()
