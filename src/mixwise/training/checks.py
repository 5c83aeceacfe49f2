"""Checks of a run: whether its parts fit together, before the first step, and whether its values are finite, during it.

Legend: X, G (m, d), losses (m,), of the owned nodes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from mixwise.errors import DivergedError, GraphError, MixingError, TrainingError, kind_of
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.needs import PlanKind
from mixwise.network import FaultyNetwork
from mixwise.network.guarded import OnBad, Robust
from mixwise.network.survivors import listed
from mixwise.protocols import Algorithm, Policy
from mixwise.tasks import ModuleTask
from mixwise.tasks.arguments import NO_TEST

_REMEDIES: dict[PlanKind, str] = {
    "weights": "weights such as metropolis-hastings",
    "two channels": "a policy with one matrix for parameters and one for updates: decoupled, d-cliques",
    "a tree": "a policy that provides a spanning tree: tree",
    "nothing": "policy: none",
}
_SAME_WEIGHTS = (
    "it keeps sums over its neighbors' public copies, so the weights must stay the same: "
    "use one fixed matrix, such as metropolis-hastings"
)
_log = logging.getLogger(__name__)
_LOWER = "is no longer finite; lower the learning rate (lr)"
_SHOWN = 4  # components in an error


def check_counts(**counts: object) -> None:
    """Reject what is not a whole number of at least 1."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise TrainingError(f"{name} = {value!r}; give a whole number of at least 1, such as {name}=10")


def check_arguments(task: object, optimizer: object, scheduler: object) -> None:
    """Reject a model or a class in the place of the task, and objects in the place of functions that make them."""
    if isinstance(task, type | str | torch.nn.Module):
        made = "mixwise.tasks.ModuleTask(module, data, partition)"
        raise TrainingError(f"task is {kind_of(task)}; make a task, such as {made}")
    if isinstance(task, ModuleTask) and task.test is None:
        raise TrainingError(NO_TEST)
    if not callable(optimizer):
        made = "optimizer=lambda rows: torch.optim.SGD(rows, lr=0.1)"
        raise TrainingError(f"optimizer is {kind_of(optimizer)}; pass a function that makes it for the rows: {made}")
    if scheduler is not None and not callable(scheduler):
        made = "scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 100)"
        raise TrainingError(f"scheduler is {kind_of(scheduler)}; pass a function that makes it: {made}")


# --- whether the parts fit together ---
def checked_scheduler(made: object) -> LRScheduler:
    """Return what a factory of schedulers has made, if it can be stepped once per step."""
    example = "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)"
    if not isinstance(made, LRScheduler):
        raise TrainingError(f"scheduler(optimizer) returned {kind_of(made)}; return a scheduler, such as {example}")
    if isinstance(made, ReduceLROnPlateau):
        raise TrainingError(f"ReduceLROnPlateau waits for a measured loss, which steps do not have; use {example}")
    return made


def check_policy(algorithm: Algorithm, policy: Policy) -> None:
    """Reject a policy that provides something else than the algorithm mixes with."""
    name, needs, provides = type(algorithm).__name__, algorithm.needs, policy.provides
    if provides.plan != needs.plan:
        raise TrainingError(
            f"{name} and {type(policy).__name__} do not fit together: the policy provides {provides.plan}, "
            f"the algorithm mixes with {needs.plan}; use {_REMEDIES[needs.plan]}"
        )
    if needs.fixed and provides.changes:
        raise TrainingError(
            f"{type(policy).__name__} changes the weights during the run, but {name} cannot: {_SAME_WEIGHTS}"
        )


def check_optimizer(algorithm: Algorithm, optimizer: torch.optim.Optimizer, local_steps: int) -> None:
    """Reject an optimizer, or a number of local steps, that the method is not defined for."""
    name, needs, kind = type(algorithm).__name__, algorithm.needs, type(optimizer).__name__
    groups = optimizer.param_groups
    if local_steps > 1 and not needs.local_steps:
        raise TrainingError(
            f"{name} averages gradients at every step, so local_steps = {local_steps} has no meaning; "
            f"to average after local steps, use algorithm: local-sgd"
        )
    if needs.optimizer == "adam" and not isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        raise TrainingError(f"{name} with {kind} is not {name}; use Adam or AdamW, or algorithm: dsgd")
    if needs.optimizer == "sgd":
        momentum = any(group.get("momentum", 0) for group in groups)
        if not isinstance(optimizer, torch.optim.SGD) or momentum:
            found = f"{kind}{' with momentum' if momentum else ''}"
            raise TrainingError(
                f"{name} is defined for steps of plain SGD, and the optimizer is {found}; use SGD with momentum 0"
            )
    _check_magnitudes(groups)
    rates = sorted({float(group["lr"]) for group in groups})
    if needs.one_lr and len(rates) > 1:
        raise TrainingError(
            f"{name} divides the movement of all columns by one learning rate, but the groups have "
            f"lr = {', '.join(map(str, rates))}; use the same for all groups"
        )


def _check_magnitudes(groups: Sequence[dict[str, Any]]) -> None:
    """Reject numbers of an optimizer that the dtype of its parameters cannot hold."""
    for group in groups:
        dtype = group["params"][0].dtype
        for name, value in group.items():
            if isinstance(value, float) and not abs(value) <= torch.finfo(dtype).max:
                kind = str(dtype).removeprefix("torch.")
                raise TrainingError(
                    f"{name} = {value}; parameters in {kind} allow numbers up to {torch.finfo(dtype).max:.2g}; "
                    f"give the optimizer a smaller one"
                )


def check_buffers(algorithm: Algorithm) -> None:
    """Reject buffers that are to be mixed by a method that cannot mix them."""
    if algorithm.needs.buffers == "none":
        raise TrainingError(
            f"{type(algorithm).__name__} has no mixing weights for the nodes' buffers (such as BatchNorm statistics); "
            f"use buffers: local, or a model without them"
        )


def check_weights(algorithm: Algorithm, W: MixingMatrix) -> None:
    """Reject weights that the method cannot mix with."""
    needs = algorithm.needs
    if needs.doubly and W.kind != "doubly":
        raise TrainingError(
            f'the weights have kind="{W.kind}", so mixing would move the mean of the nodes; '
            f"use doubly stochastic weights, or an algorithm that corrects for it (push-sum)"
        )
    if needs.stable is not None:
        needs.stable(W)


def check_unchanged(algorithm: Algorithm, now: Sequence[MixingMatrix], before: Sequence[MixingMatrix]) -> None:
    """Reject other weights than before for a method that needs the same ones at every mixing."""
    if algorithm.needs.fixed and before and any(W not in before for W in now):
        raise TrainingError(
            f"the weights are not those of the last mixing, but {type(algorithm).__name__} needs them: {_SAME_WEIGHTS}"
        )


def check_connected(graph: Graph, matrices: Sequence[MixingMatrix] = ()) -> None:
    """Reject a graph whose nodes cannot all learn from each other, unless the edges of `matrices` connect them.

    The graph of a single mixing may be disconnected, as matchings are; the union of all edges must be connected.
    """
    if graph.is_connected:
        return
    used = [graph.arcs, *(W.graph.arcs for W in matrices if W.n == graph.n)]
    ends = [np.stack([arcs.senders, arcs.receivers], axis=1) for arcs in used]
    parts = Graph(graph.n, np.concatenate(ends), directed=True).components
    if len(parts) == 1:
        return
    shown = " | ".join(listed(part) for part in parts[:_SHOWN]) + (" | …" if len(parts) > _SHOWN else "")
    reach = "do not all reach each other along the arcs" if graph.directed else "cannot reach each other"
    raise GraphError(
        f"the graph has {len(parts)} components, nodes {shown}, that {reach}, so no model learns from all data; use a "
        f"connected graph, or train one component: graph.subgraph(max(graph.components, key=len))"
    )


def arc_off(graph: Graph, W: MixingMatrix) -> tuple[int, int] | None:
    """Return the first arc i → j with a weight in W that the graph does not have."""
    if W.graph is graph or W.graph == graph or W.n != graph.n:
        return None
    rows, columns = W.graph.pattern.rows, W.graph.pattern.cols
    carries = (W.weights > 0) & (rows != columns)
    rows, columns = rows[carries], columns[carries]
    allowed = graph.arcs.senders * graph.n + graph.arcs.receivers
    off = np.flatnonzero(~np.isin(rows * graph.n + columns, allowed))
    return (int(rows[off[0]]), int(columns[off[0]])) if len(off) else None


def check_on_graph(graph: Graph, W: MixingMatrix) -> None:
    """Reject weights that send along an arc that the graph does not have."""
    if (arc := arc_off(graph, W)) is not None:
        i, j = arc
        raise MixingError(
            f"the matrix sends from node {i} to node {j}, an arc that the graph of the run does not have; make it for "
            f'that graph, use the reference policy="full-averaging", or let a policy of your own declare it: '
            f"provides = Provides(own_edges=True)"
        )


def warn_of_faults(network: FaultyNetwork, algorithm: Algorithm, known: Sequence[MixingMatrix]) -> None:
    """Say before the first step what the faults of a simulation do to a method that cannot make up for them."""
    name, needs, acknowledged = type(algorithm).__name__, algorithm.needs, network.faults.acknowledged
    directed = network.graph.directed or any(W.graph.directed for W in known)
    if needs.plan == "nothing":
        _log.warning(f"faults: {name} loses nothing, as an average over all nodes waits for every message and node")
    elif needs.fixed:
        _log.warning(f"faults: {name} adds up all messages, so that a lost one is missing ever after")
    elif needs.plan == "a tree":
        _log.warning(
            f"faults: {name} averages over the part of the tree that a node hears, less with every lost message"
        )
    elif not acknowledged and not needs.doubly:
        _log.warning(f"faults: with acknowledged: false, {name} loses mass with every message, and may diverge")
    elif needs.doubly and (directed or not acknowledged):
        why = "along directed arcs" if directed else "with acknowledged: false"
        _log.warning(f"faults: {why}, lost messages move the mean of the nodes; exact methods lose their exactness")


def check_guarded(algorithm: Algorithm, robust: Robust, on_bad: OnBad) -> None:
    """Reject a guard around an algorithm whose messages cannot be judged, or left out, one by one."""
    needs = algorithm.needs
    unfit = needs.plan not in ("weights", "two channels") or needs.fixed or not needs.doubly
    if unfit and (robust, on_bad) != ("none", "stop"):
        option = f"robust: {robust}" if robust != "none" else f"on_bad: {on_bad}"
        raise TrainingError(
            f"{option} compares the rows of neighbors, but {type(algorithm).__name__} sends something else (sums, "
            f"compressed differences or masses); use robust: none and on_bad: stop, or an algorithm such as dsgd"
        )


# --- values that are NaN or infinite; before the first step the learning rate is not the reason ---
def check_initial(X: torch.Tensor, nodes: Sequence[int]) -> None:
    """Reject initial parameters that are not finite."""
    if (row := _bad_row(X)) is not None:
        raise TrainingError(
            f"the initial parameters of node {nodes[row]} are not finite before the first step; check how the model is "
            f"initialized, and the weights that it loads, for NaN and infinity"
        )


def check_finite(what: str, values: torch.Tensor, nodes: Sequence[int], t: int) -> None:
    """Reject losses or gradients of step t that are not finite, computed with parameters that are."""
    if (row := _bad_row(values)) is not None:
        node = nodes[row]
        if t == 0:
            start = "is not finite, though its initial parameters are; check its data, the model and the loss"
            raise TrainingError(f"step 0: the {what} of node {node} {start}")
        raise DivergedError(f"step {t}: the {what} of node {node} {_LOWER}", node=node, step=t)


def check_parameters(X: torch.Tensor, G: torch.Tensor, nodes: Sequence[int], t: int) -> None:
    """Reject parameters that are not finite after a step of the optimizer with the gradients G."""
    if (row := _bad_row(X)) is not None:
        if t == 0:
            check_finite("gradient", G[row : row + 1], nodes[row : row + 1], t)
        raise DivergedError(f"step {t}: a parameter of node {nodes[row]} {_LOWER}", node=nodes[row], step=t)


def _bad_row(values: torch.Tensor) -> int | None:
    """The first row that is not finite."""
    # A sum passes on every NaN and infinity, at a twentieth of the cost of looking at each entry.
    if math.isfinite(values.sum()):
        return None
    bad = ~torch.isfinite(values).reshape(len(values), -1).all(dim=1)
    return int(bad.nonzero()[0]) if bool(bad.any()) else None
