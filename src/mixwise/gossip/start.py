"""Before the first step: what a user handed over becomes parts that fit together, on every rank alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import nn

from mixwise.algorithms import DSGD, AllReduceSGD, CombineWhileAdapt
from mixwise.errors import MixwiseError, TrainingError
from mixwise.gossip.agreement import difference, report
from mixwise.gossip.description import Lines, describe, describe_model
from mixwise.gossip.model_row import ModelRow
from mixwise.gossip.survival import graph_in
from mixwise.graphs import Graph
from mixwise.network import DistributedNetwork, SimulatedNetwork
from mixwise.network.membership import check_supervised
from mixwise.network.together import place, spread, texts_of_all
from mixwise.network.transport import Transport
from mixwise.policies.choice import PolicyLike, policy_for
from mixwise.protocols import Algorithm, Network
from mixwise.tasks.module import BufferPolicy
from mixwise.training.checks import check_buffers, check_counts, check_optimizer

OnLoss: TypeAlias = Literal["stop", "continue"]

# By name, also those of other libraries; torch.distributed.fsdp takes a second to import.
_SYNCHRONIZED = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


class Parts:
    """What this rank is made of, checked; arguments as those of `Gossip`.

    Attributes:
        lines: the same as text, to be compared with other ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        graph: Graph,
        policy: PolicyLike,
        algorithm: Algorithm | None,
        *,
        local_steps: int,
        buffers: BufferPolicy,
        overlap: bool,
        wire_dtype: torch.dtype | None,
        seed: int,
        on_loss: OnLoss = "stop",
    ) -> None:
        check_counts(local_steps=local_steps)
        if buffers not in ("local", "averaged"):
            raise TrainingError(f'buffers = {buffers!r}; choose "local" or "averaged"')
        _check_on_loss(on_loss, policy)
        self.algorithm = chosen_algorithm(algorithm, overlap)
        self.policy = policy_for(policy, graph, self.algorithm.needs)
        _check_unsynchronized(model)
        self.row = ModelRow(model)
        _check_parameters(optimizer, self.row)
        check_optimizer(self.algorithm, optimizer, local_steps)
        if buffers == "averaged" and self.row.buffer_row() is not None:
            check_buffers(self.algorithm)
        options: dict[str, object] = {"local_steps": local_steps, "buffers": buffers, "overlap": overlap}
        options |= {"wire_dtype": wire_dtype, "seed": seed, "on_loss": on_loss}
        self.lines = describe_model(model) | describe("the graph", graph)
        self.lines |= describe("the policy", self.policy) | describe("the algorithm", self.algorithm)
        for name, value in options.items():
            self.lines |= describe(name, value)


def agreed(make: Callable[[], Parts], timeout: float) -> Parts:
    """The parts that this rank makes, if all ranks make the same; otherwise an error on every rank."""
    transport = None if place() is None else Transport(None, timeout)
    parts: Parts | None = None
    problem: MixwiseError | None = None
    try:
        parts = make()
    except MixwiseError as error:
        problem = error
    check_alike({} if parts is None else parts.lines, problem, transport)
    assert parts is not None
    return parts


def check_alike(lines: Lines, error: MixwiseError | None, transport: Transport | None) -> None:
    """Raise this rank's own error; or say, on every rank, which one has an error or is described by other lines."""
    told = None if transport is None else difference(texts_of_all(report(lines, error), transport))
    if error is not None:
        raise error
    if told is not None:
        raise TrainingError(told)


def chosen_algorithm(algorithm: Algorithm | None, overlap: bool) -> Algorithm:
    """D-SGD by default, or its form whose rows travel while gradients are computed."""
    if isinstance(algorithm, AllReduceSGD):
        raise TrainingError(
            "AllReduceSGD averages gradients over all ranks before every step, which is no gossip; "
            "take torch's DistributedDataParallel for it"
        )
    if overlap and not isinstance(algorithm, CombineWhileAdapt | None):
        raise TrainingError(
            f"overlap=True lets rows travel while gradients are computed, which {type(algorithm).__name__} does not "
            f"know; leave out algorithm= or overlap="
        )
    if algorithm is not None:
        return algorithm
    return CombineWhileAdapt() if overlap else DSGD()


def _check_on_loss(on_loss: OnLoss, policy: PolicyLike) -> None:
    """Going on needs a supervisor, and weights that can be made for what is left of the graph."""
    if on_loss not in ("stop", "continue"):
        raise TrainingError(f'on_loss = {on_loss!r}; choose "stop" or "continue"')
    if on_loss == "continue":
        check_supervised()
        if not callable(policy) and graph_in(policy):
            raise TrainingError(
                f'on_loss="continue" with {type(policy).__name__}: it is made for one graph, a loss leaves another; '
                f"hand over a function that makes it, such as policy=mixwise.mixing.metropolis_hastings"
            )


def check_graph(graph: Graph) -> None:
    """One node per process."""
    if not isinstance(graph, Graph):
        raise TrainingError(
            f"graph is a {type(graph).__name__}; take a mixwise.Graph, such as mixwise.graphs.ring(n) or "
            f"mixwise.graphs.from_networkx(graph)"
        )
    here = place()
    if here is None and graph.n > 1:
        raise TrainingError(
            f"the graph has {graph.n} nodes, but there is no process group; start {graph.n} processes with torchrun "
            f'--nproc-per-node {graph.n} and call torch.distributed.init_process_group("gloo") before Gossip'
        )
    if here is not None and graph.n != here[1]:
        raise TrainingError(
            f"the graph has {graph.n} nodes, but there are {here[1]} processes; Gossip has one node per process: "
            f"take a graph for {here[1]} nodes, or start {graph.n} processes"
        )


def _check_unsynchronized(model: nn.Module) -> None:
    """No part of the model makes all ranks alike on its own: there would be nothing left to mix."""
    for name, part in model.named_modules():
        for known in type(part).__mro__:
            if known.__name__ in _SYNCHRONIZED:
                which = f"the part {name!r} of the model" if name else "the model"
                raise TrainingError(
                    f"{which} is a {known.__name__}, which averages the gradients of all ranks in backward(), so that "
                    f"nothing is left to gossip; hand the plain module, model.module, to the optimizer and to Gossip, "
                    f"and call that one in the loop"
                )


def _check_parameters(optimizer: torch.optim.Optimizer, row: ModelRow) -> None:
    strangers = [p for group in optimizer.param_groups for p in group["params"] if not row.holds(p)]
    if strangers:
        raise TrainingError(
            f"the optimizer has a parameter of shape {tuple(strangers[0].shape)} that is not in the model, so it would "
            f"never be mixed; hand over a module that has all of them: nn.ModuleList([model, other])"
        )


def connected(graph: Graph, wire_dtype: torch.dtype | None, timeout: float) -> Network:
    """The way to the other ranks; alone where there are none."""
    if place() is None:
        return SimulatedNetwork(graph)
    return DistributedNetwork(graph, wire_dtype=wire_dtype, timeout=timeout)


def take_from_first(tensor: torch.Tensor, network: Network) -> None:
    """Rank 0's values on every rank, in place."""
    if isinstance(network, DistributedNetwork):
        spread(tensor, network.transport)


def begin_together(row: ModelRow, network: Network) -> None:
    """All ranks begin with the parameters and buffers of rank 0."""
    for tensor in (row.X, *row.frozen.values(), *row.module.buffers()):
        take_from_first(tensor, network)
    if not row.is_finite:
        raise TrainingError(
            "the parameters of the model are not finite before the first step (all ranks begin with those of rank 0); "
            "check how it is initialized, and the weights that it loads, for NaN and infinity"
        )
