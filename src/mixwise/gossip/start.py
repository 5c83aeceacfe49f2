"""Before the first step: the arguments of `Gossip` become parts that fit together, the same on every rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from mixwise.algorithms import DSGD, AllReduceSGD, CombineWhileAdapt
from mixwise.errors import MixwiseError, TrainingError, kind_of
from mixwise.gossip.collective import take_from_first
from mixwise.gossip.model_row import ModelRow
from mixwise.gossip.schedule import Schedule
from mixwise.gossip.steps import unwrapped
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.network import DistributedNetwork, Link, SimulatedNetwork
from mixwise.network.agreement import check_alike, describe, describe_model
from mixwise.network.guarded import OnBad, Robust, guarded
from mixwise.network.membership import LIGHTHOUSES
from mixwise.network.transport import Transport, process_count
from mixwise.policies.choice import PolicyLike, as_algorithm, policy_for
from mixwise.protocols import Algorithm, Network, Policy
from mixwise.tasks.module import BufferPolicy
from mixwise.training.checks import check_buffers, check_counts, check_guarded, check_initial, check_optimizer

# By name, also those of other libraries; torch.distributed.fsdp takes a second to import.
_AVERAGING, _SHARDED = "DistributedDataParallel", ("FullyShardedDataParallel", "FSDPModule")


@dataclass(frozen=True)
class Options:
    """The options of `Gossip` that must be the same on every rank."""

    local_steps: int
    buffers: BufferPolicy
    overlap: bool
    wire_dtype: torch.dtype | None
    links: Link | None
    seed: int
    elastic: bool
    rejoin: Literal["neighbor", "own"]
    robust: Robust
    on_bad: OnBad
    log_every: int | None  # None without a log: its records are collective calls


class Parts:
    """The parts of this rank, validated on construction; arguments as those of `Gossip`.

    Attributes:
        optimizer: torch's own, also if accelerate has wrapped it.
        row: the trained parameters of the model.
        schedule: of the learning rate.
        lines: a description to compare with other ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        graph: Graph,
        policy: PolicyLike,
        algorithm: Algorithm | str | None,
        scheduler: object,
        options: Options,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TrainingError(f"model is {kind_of(model)}; pass the nn.Module that your loop trains")
        if not isinstance(optimizer, torch.optim.Optimizer):
            made = "torch.optim.SGD(model.parameters(), lr=0.1)"
            raise TrainingError(f"optimizer is {kind_of(optimizer)}; pass the one of your loop, such as {made}")
        check_counts(local_steps=options.local_steps)
        if options.buffers not in ("local", "averaged"):
            raise TrainingError(f'buffers = {options.buffers!r}; choose "local" or "averaged"')
        if options.rejoin not in ("neighbor", "own"):
            raise TrainingError(f'rejoin = {options.rejoin!r}; choose "neighbor" or "own"')
        if not isinstance(options.links, Link | None):
            raise TrainingError(f"links is {kind_of(options.links)}; pass one: mixwise.network.Link(0.02, 1.25e6)")
        if options.elastic:
            _check_elastic(policy)
        if options.log_every is not None and options.elastic:
            raise TrainingError("log=… shows all ranks, and elastic=True may lose some; leave one of them out")
        self.optimizer = optimizer = unwrapped(optimizer)
        self.graph, self.options, self._given_policy = graph, options, policy
        self.schedule = Schedule(scheduler, optimizer)
        self.algorithm = _chosen_algorithm(algorithm, options.overlap)
        check_guarded(self.algorithm, options.robust, options.on_bad)
        self.policy = self.policy_on(graph)
        _check_unsynchronized(model)
        self.row = ModelRow(model)
        _check_parameters(optimizer, model)
        check_optimizer(self.algorithm, optimizer, options.local_steps)
        if options.buffers == "averaged" and self.row.mixable_buffers:
            check_buffers(self.algorithm)
        self.lines = describe_model(model)
        named = {"the graph": graph, "the policy": self.policy, "the algorithm": self.algorithm}
        named |= {"the scheduler": self.schedule.kind, **vars(options)}
        for name, value in named.items():
            self.lines |= describe(name, value)

    def policy_on(self, graph: Graph) -> Policy:
        """Return the policy for a graph, which may be that of fewer ranks."""
        return policy_for(self._given_policy, graph, self.algorithm.needs)


def agreed(make: Callable[[], Parts], transport: Transport | None) -> Parts:
    """Return the parts of this rank if they are the same on all ranks; otherwise raise an error on every rank."""
    try:
        parts = make()
    except MixwiseError as error:
        check_alike({}, error, transport)
        raise
    check_alike(parts.lines, None, transport)
    return parts


def _chosen_algorithm(algorithm: Algorithm | str | None, overlap: bool) -> Algorithm:
    """Return D-SGD by default, or its variant whose rows travel while gradients are computed."""
    algorithm = None if algorithm is None else as_algorithm(algorithm)
    if isinstance(algorithm, AllReduceSGD):
        raise TrainingError("AllReduceSGD averages over all ranks without gossip; use torch's DistributedDataParallel")
    if overlap and not isinstance(algorithm, CombineWhileAdapt | None):
        raise TrainingError(f"{type(algorithm).__name__} does not support overlap=True; omit algorithm= or overlap=")
    if algorithm is not None:
        return algorithm
    return CombineWhileAdapt() if overlap else DSGD()


def _check_elastic(policy: PolicyLike) -> None:
    """Weights must be made for whichever ranks are present."""
    if not callable(policy) and _holds_graph(policy):
        raise TrainingError(
            f"elastic=True with {type(policy).__name__}: it is made for one graph, and a loss leaves another; "
            f"pass a function that makes it, such as policy=mixwise.mixing.metropolis_hastings"
        )


def _holds_graph(value: object, depth: int = 6) -> bool:
    """Whether a policy, or a part of it, holds a graph or weights for one, and so cannot serve another graph."""
    if isinstance(value, Graph | MixingMatrix):
        return True
    parts: Any = value if isinstance(value, list | tuple) else getattr(value, "__dict__", {}).values()
    return depth > 0 and any(_holds_graph(part, depth - 1) for part in parts)


def check_graph(graph: Graph, processes: int | None) -> None:
    """Check that there is one process per node; `processes` is None without a process group."""
    if not isinstance(graph, Graph):
        raise TrainingError(
            f"graph is {kind_of(graph)}; take a mixwise.Graph, such as mixwise.graphs.ring(n) or "
            f"mixwise.graphs.from_networkx(graph)"
        )
    started = int(os.environ.get("WORLD_SIZE", 1)) if processes is None and "RANK" in os.environ else processes
    if started is None and graph.n > 1:
        raise TrainingError(
            f"the graph has {graph.n} nodes, but this is the only process; start {graph.n}: mixwise launch "
            f"--nproc-per-node {graph.n} -- train.py, with torch.distributed.init_process_group() before Gossip"
        )
    if started not in (None, graph.n):
        raise TrainingError(
            f"the graph has {graph.n} nodes, but there are {started} processes; Gossip has one node per process: "
            f"take a graph for {started} nodes, or start {graph.n} processes"
        )
    if processes is None and graph.n > 1:
        rank = os.environ["RANK"]
        remedy = 'call torch.distributed.init_process_group("gloo") before Gossip'
        if LIGHTHOUSES in os.environ:
            remedy = "pass elastic=True to Gossip, which makes the group itself"
        raise TrainingError(f"this is process {rank} of {started}, but there is no process group yet; {remedy}")


def _check_unsynchronized(model: nn.Module) -> None:
    """Check that no part of the model synchronizes the ranks itself: there would be nothing left to mix."""
    for name, part in model.named_modules():
        which = f"the part {name!r} of the model" if name else "the model"
        kinds = [kind.__name__ for kind in type(part).__mro__]
        if _AVERAGING in kinds:
            raise TrainingError(
                f"{which} is a {_AVERAGING}, which averages gradients over all ranks; pass the module inside of it, "
                f"model.module, to the optimizer and to Gossip, and call it in the loop"
            )
        for kind in kinds:
            if kind in _SHARDED:
                remedy = "leave out fully_shard" if kind == "FSDPModule" else f"leave out {kind}(…)"
                raise TrainingError(
                    f"{which} is a {kind}, which divides the parameters over all ranks and averages their gradients, "
                    f"but a node of Gossip is one process with a whole model; {remedy}, or train it without Gossip"
                )


def _check_parameters(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    known = set(model.parameters())
    strangers = [p for group in optimizer.param_groups for p in group["params"] if p not in known]
    if strangers:
        raise TrainingError(
            f"the optimizer has a parameter of shape {tuple(strangers[0].shape)} that is not in the model, so it would "
            f"never be mixed; pass a module that has all of them: nn.ModuleList([model, other])"
        )


def connected(graph: Graph, options: Options, timeout: float, has_changed: Callable[[], bool] | None = None) -> Network:
    """Return the network of the default process group; a simulation of one node without a group."""
    if process_count() is None:
        return SimulatedNetwork(graph)
    network = DistributedNetwork(graph, wire_dtype=options.wire_dtype, timeout=timeout, has_changed=has_changed)
    return guarded(network, options.robust, options.on_bad)


def begin_together(row: ModelRow, network: Network) -> None:
    """Let all ranks begin with the parameters and buffers of rank 0."""
    for tensor in (row.X, *row.frozen.values(), *row.module.buffers()):
        take_from_first(tensor, network)
    check_initial(row.X, [0])
