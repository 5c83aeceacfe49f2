"""Gossip in somebody's own PyTorch loop: one node per process, the optimizer's step, then mixing with the neighbors.

    U = X − X′, the optimizer's steps since the last mixing;  plan = the policy's matrices;  X⁺ = the algorithm's mixing

The mixing is that of `Training`; hooks on the optimizer tell the mixer what it must know.
Legend: X, G (1, d), the row of this node; B (1, b) its buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import nn

from mixwise.algorithms import Algorithm
from mixwise.errors import NetworkError, TrainingError
from mixwise.gossip.average import averaged_state
from mixwise.gossip.description import describe
from mixwise.gossip.joining import DONE, FAILED, WORKING, somebody_works
from mixwise.gossip.metrics import metrics
from mixwise.gossip.saved import objection
from mixwise.gossip.start import (
    OnLoss,
    Parts,
    PolicyChoice,
    agreed,
    begin_together,
    check_alike,
    check_graph,
    chosen_policy,
    connected,
)
from mixwise.gossip.steps import Steps
from mixwise.gossip.survival import Place, Survival
from mixwise.graphs import Graph
from mixwise.network import DistributedNetwork, Network
from mixwise.policies import Plan
from mixwise.tasks.module import BufferPolicy
from mixwise.train.mixer import Mixer

Answer = TypeVar("Answer")


class Gossip:
    """Mixes a model's parameters with those of the neighbors after the optimizer's steps.

    Args:
        model: any module; its trained parameters become views of one row of memory.
        optimizer: any optimizer of its parameters.
        graph: who talks to whom; node i is rank i.
        policy: the weights of each mixing: a policy, one mixing matrix, "auto", or a function that makes a policy or a
            matrix for a graph.
        algorithm: what is mixed; D-SGD by default.
        local_steps: τ: every τ-th `step()` mixes.
        buffers: "local": every node keeps its own, such as the statistics of BatchNorm; "averaged": they are mixed as
            the parameters are.
        overlap: let the rows travel while the next gradients are computed (`CombineWhileAdapt`).
        wire_dtype: torch.bfloat16 or torch.float16 rounds the rows for the message, and only there.
        timeout: seconds that any wait for other ranks may take.
        seed: names the sketches of policy "auto".
        on_loss: when a rank is lost, "stop" with an error, or "continue" without it (`mixwise launch`).
        network: how rows travel; by default over torch's process group.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> gossip = Gossip(model, optimizer, Graph(1, []))         # alone; under torchrun, one node per process
        >>> model(torch.ones(4, 2)).sum().backward()
        >>> gossip.step()
        >>> gossip.t
        1
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        graph: Graph,
        policy: PolicyChoice = "auto",
        algorithm: Algorithm | None = None,
        *,
        local_steps: int = 1,
        buffers: BufferPolicy = "local",
        overlap: bool = False,
        wire_dtype: torch.dtype | None = None,
        timeout: float = 60.0,
        seed: int = 0,
        on_loss: OnLoss = "stop",
        network: Network | None = None,
    ) -> None:

        def make() -> Parts:
            if network is None:
                check_graph(graph)
            return Parts(
                model, optimizer, graph, policy, algorithm,
                local_steps=local_steps, buffers=buffers, overlap=overlap, wire_dtype=wire_dtype, seed=seed,
                on_loss=on_loss,
            )  # fmt: skip

        parts = make() if network is not None else agreed(make, timeout)
        self.model, self.optimizer, self.local_steps, self.buffers = model, optimizer, local_steps, buffers
        self.row = parts.row
        self.network = connected(graph, wire_dtype, timeout) if network is None else network
        self.network.traffic.reset()
        self.mixer = Mixer(self.network, parts.policy, parts.algorithm, local_steps)
        self.policy, self.algorithm = self.mixer.policy, self.mixer.algorithm  # copies, which remember for this run
        self.row.bind()
        begin_together(self.row, self.network)
        self.steps = Steps(optimizer, self.row, self.mixer)
        self.plan: Plan | None = None  # the weights of the last mixing
        self._calls = self._asked = 0  # of step(), and of what all ranks make together, since the last mixing
        self._survival: Survival | None = None
        if on_loss == "continue":
            self._survival = Survival(
                graph,
                parts.algorithm,
                lambda left: chosen_policy(policy, left, parts.algorithm, seed),
                lambda left: connected(left, wire_dtype, timeout),
                timeout,
            )
            self.steps.on_loss = self._go_on
        self._joined = self._mixing = False  # inside join(); inside a mixing
        self._start_early()

    @property
    def t(self) -> int:
        """Mixings done."""
        return self.mixer.t

    @property
    def rank(self) -> int:
        """This node; after a loss, its place among those that are left."""
        return self.network.nodes[0]

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks of the start that are left, this one at the place `rank`."""
        if self._survival is None:
            return tuple(range(self.network.graph.n))
        return self._survival.membership.generation.members

    # --- one step ---
    def step(self, closure: Callable[[], Any] | None = None, *, scaler: torch.amp.GradScaler | None = None) -> Any:
        """The optimizer's step, and after every `local_steps` of them a mixing; one that the scaler skips counts."""
        before = self.steps.taken
        if scaler is not None:
            loss = scaler.step(self.optimizer)
        else:
            loss = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        if self.steps.taken == before:
            self.steps.rest()
        self._calls += 1
        if self._calls >= self.local_steps:
            self.mix()
        return loss

    @torch.no_grad()
    def mix(self) -> None:
        """Mix what the optimizer has made of the parameters; all ranks must mix equally often."""
        self.row.settle()
        if not self.algorithm.mixes_early or self._looks:
            self._check_finite()
        self._mix_with_survivors(lambda: self._tell(WORKING) if self._joined else True)

    def _mix_with_survivors(self, wanted: Callable[[], bool]) -> bool:
        """Mix, if it is wanted; one that fails because a rank is lost counts as done. Whether it was wanted."""
        if self._survival is None:
            if not wanted():
                return False
            self._mix()
            return True
        if self._survival.behind:
            self._survival.behind -= 1
        else:
            self._survival.keep(self.row.X)
            try:
                if not wanted():
                    return False
                self._mix()
                return True
            except NetworkError as error:
                self._survival.restore(self.row.X)
                self._mixing = False
                self._go_on(error, (self.t + 1, 0))
        self.steps.mixed()
        self._calls, self.mixer.lr = 0, 0.0
        self.steps.paused = self._survival.behind > 0
        self._start_early()
        return True

    def _go_on(self, error: NetworkError, at: Place | None = None) -> None:
        """Go on with the ranks that are left, if there is a way."""
        if self._survival is None:
            raise error
        place, network, policy, algorithm = self._survival.reform(at or (self.t, self._asked), self.network)
        self.network, self.plan = network, None
        self.mixer = self.steps.mixer = Mixer(network, policy, algorithm, self.local_steps)
        self.policy, self.algorithm = self.mixer.policy, self.mixer.algorithm
        t, self._asked = place
        self.mixer.begin_at(t)
        self.steps.remembered, self.steps.paused = False, self._survival.behind > 0

    def _mix(self) -> None:
        self._mixing = True
        self.steps.remember()
        if self.steps.since_mixing == 0:
            self.steps.rest()
        X, mixer = self.row.X, self.mixer
        G = self.row.gradients() if self._looks else X  # nobody else may look at it
        B = self.row.buffer_row() if self.buffers == "averaged" else None
        self.network.step = self.t
        try:
            self.plan = mixer.plan(X, G)
            mixer.mix(X, self.plan, B)
        except NetworkError as error:
            raise self._with_a_hint(error) from error
        if B is not None:
            self.row.put_buffers(B)
        self.steps.mixed()
        self._calls = self._asked = 0
        self._mixing = False
        self._start_early()

    @property
    def _looks(self) -> bool:
        """Whether the policy will look at what the step has done, and tell others of it."""
        return self.policy.observes(self.t - self.mixer.began)

    def _start_early(self) -> None:
        """Let the rows set out now, if they travel while the gradients are computed."""
        if self.algorithm.mixes_early:
            self._check_finite()  # they are still in the cache
            try:
                self.steps.remember()
            except NetworkError:  # others may have finished and gone; if this was not the last mixing, the next tells
                self.steps.remembered = True

    def _check_finite(self) -> None:
        if not self.row.is_finite:
            raise TrainingError(
                f"mixing {self.t}: a parameter of rank {self.rank} is no longer finite, so nothing was sent; "
                + ("check its data and its loss for NaN, or " if self.t == 0 else "")
                + "lower the learning rate"
            )

    def _with_a_hint(self, error: NetworkError) -> NetworkError:
        """What went wrong, and at what it often lies."""
        if self._joined:
            return error
        hint = "if ranks have different numbers of batches, put the loop into `with gossip.join():`"
        return NetworkError(f"{error}; {hint}", missing=error.missing, operation=error.operation, step=error.step)

    # --- nodes with different amounts of data ---
    @contextmanager
    def join(self) -> Iterator[None]:
        """Inside, ranks may take different numbers of steps: who has run out keeps mixing until the last is done."""
        if self._joined:
            raise TrainingError("join() inside of join(); one block around the loop is enough")
        self._joined = True
        try:
            yield
            with torch.no_grad():
                self.row.settle()
                # Steps that were not mixed yet, local ones, are still to be shared.
                while self._mix_with_survivors(lambda: self._tell(WORKING if self.steps.since_mixing else DONE)):
                    pass
        except Exception as error:
            if not (self._mixing or isinstance(error, NetworkError)):  # else nobody waits to be told
                with suppress(NetworkError):
                    self._tell(FAILED)
            raise
        finally:
            self._joined = self._mixing = False

    def _tell(self, status: int) -> bool:
        return somebody_works(status, self.network, self.t, self.row.device)

    # --- what all ranks make together ---
    @torch.no_grad()
    def average(self) -> dict[str, Any]:
        """The state dict of the averaged model, the same on every rank; collective, and the model stays as it is.

        Parameters and floating-point buffers are averaged, other buffers are those of rank 0, frozen parameters and
        whatever else the state dict holds are as they are here.
        """
        state = self._asked_of_all(self._average)
        if state is None:
            raise NetworkError("the others have averaged and gone on when a rank was lost; ask for the average again")
        return state

    def _average(self) -> dict[str, Any]:
        self.row.settle()
        return averaged_state(self.row, self.algorithm, self.network)

    @torch.no_grad()
    def metrics(self) -> dict[str, float]:
        """Consensus distance, gradient mixing error, p, bytes per node: the same on every rank; collective.

        Empty on a rank that missed the others' answer because one was lost at that moment.
        """
        return self._asked_of_all(self._metrics) or {}

    def _metrics(self) -> dict[str, float]:
        self.row.settle()
        G = self.row.gradients() if self.row.has_gradients else None
        return metrics(self.algorithm.model_rows(self.row.X), G, self.plan, self.network)

    def _asked_of_all(self, question: Callable[[], Answer]) -> Answer | None:
        """What all ranks answer together; None if a rank was lost when others had the answer, and they have gone on."""
        while True:
            try:
                answer = question()
            except NetworkError as error:
                place = self.t, self._asked
                self._go_on(error)
                if place != (self.t, self._asked):
                    return None
            else:
                self._asked += 1
                return answer

    # --- what a checkpoint holds ---
    def state_dict(self) -> dict[str, Any]:
        """All that the next mixing of this rank depends on besides the model's and the optimizer's state dicts."""
        tensors, values = self.mixer.state()
        values |= {"t": self.t, "calls": self._calls, "since_mixing": self.steps.since_mixing}
        values |= {"remembered": self.steps.remembered, "rank": self.rank, "world": self.network.graph.n}
        values["parameters"] = self.row.checksum()
        return {"tensors": {name: tensor.clone() for name, tensor in tensors.items()}, "values": values}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state; after the model's and the optimizer's, and on all ranks (collective)."""
        self.row.settle()
        tensors, values = state["tensors"], state["values"]
        transport = self.network.transport if isinstance(self.network, DistributedNetwork) else None
        problem = objection(values, self.rank, self.network.graph.n, self.row.checksum())
        check_alike(describe("the state to load", {"t": values["t"]}), problem, transport)
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        self.mixer.load_state(tensors, values, values["t"], self.row.device)
        self._calls = values["calls"]
        self.steps.since_mixing, self.steps.remembered = values["since_mixing"], values["remembered"]
