"""The training loop, the same for every algorithm and policy.

G = stochastic gradients at X;  X′ = the optimizer's step on X;  U = X − X′
plan = the policy's matrices for mixing t;  X⁺ = the algorithm's combination
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from mixwise.algorithms import Algorithm
from mixwise.errors import TrainingError
from mixwise.mixing import (
    consensus_distance,
    consensus_factor,
    gradient_mixing_error,
    heterogeneity,
)
from mixwise.network import Network
from mixwise.policies import Observation, Plan, Policy
from mixwise.tasks import Task
from mixwise.train.records import Record

OptimizerFactory = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def train(
    task: Task,
    network: Network,
    policy: Policy,
    algorithm: Algorithm,
    optimizer: OptimizerFactory,
    steps: int,
) -> Iterator[Record]:
    """Run `steps` steps and yield a record after each.

    Args:
        task: what is learned; it has as many nodes as the network.
        network: who talks to whom, and which rows are here.
        policy: the weights of each mixing.
        algorithm: what is mixed.
        optimizer: makes a `torch.optim` optimizer for the rows, e.g. `lambda p: torch.optim.SGD(p, lr=0.1)`.
        steps: how many.

    Example:
        >>> from mixwise import algorithms, graphs, policies, tasks
        >>> from mixwise.network import SimulatedNetwork
        >>> runs = train(tasks.random_quadratics(8), SimulatedNetwork(graphs.ring(8)),
        ...              policies.HeterogeneityAware(), algorithms.DSGD(),
        ...              lambda rows: torch.optim.SGD(rows, lr=0.005), steps=3)
        >>> [record.step for record in runs]
        [0, 1, 2]
    """
    if task.nodes != network.graph.n:
        raise TrainingError(f"the task has {task.nodes} nodes, the graph {network.graph.n}; they must be the same")
    nodes = network.nodes
    X = torch.nn.Parameter(task.initial(nodes))
    stepper = optimizer([X])
    for t in range(steps):
        start = time.perf_counter()
        X_before = X.detach().clone()
        losses, G = task.losses_and_gradients(X.detach(), nodes, t)
        X.grad = G
        stepper.step()
        X_prime = X.detach()
        computed = time.perf_counter()
        plan = policy.plan(t, Observation(X_before - X_prime, G, X_prime), network)
        planned = time.perf_counter()
        with torch.no_grad():
            X.copy_(algorithm.combine(X_before, X_prime, plan, network))
        mixed = time.perf_counter()
        _check_finite(X, nodes, t)
        with np.errstate(over="ignore"):  # a run on its way to infinity is stopped above, not warned about here
            values = {"loss": float(losses.mean()), **task.evaluate(X.detach()), **_mixing_metrics(X, G, plan)}
        values |= {"bytes_parameters": network.traffic.parameters, "bytes_sketches": network.traffic.sketches}
        seconds = {"compute": computed - start, "plan": planned - computed, "mix": mixed - planned}
        yield Record(t, values, seconds)


def _mixing_metrics(X: torch.Tensor, G: torch.Tensor, plan: Plan) -> dict[str, float | str | int]:
    error = gradient_mixing_error(G, plan.updates_product)
    values: dict[str, float | str | int] = {
        "consensus_distance": consensus_distance(X),
        "gradient_mixing_error": error,
        "heterogeneity": heterogeneity(G),
        "relative_heterogeneity": error / len(G),
        "consensus_factor": consensus_factor(plan.params_product),
    }
    if plan.solve is not None:
        values |= {"solve_status": plan.solve.status, "solve_iterations": plan.solve.iterations}
    return values


def _check_finite(X: torch.Tensor, nodes: range, t: int) -> None:
    finite = torch.isfinite(X).all(dim=1)
    if not bool(finite.all()):
        node = nodes[int((~finite).nonzero()[0])]
        raise TrainingError(f"step {t}: the parameters of node {node} are no longer finite; lower the step size (lr)")
