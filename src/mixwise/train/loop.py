"""From a training run to records."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from mixwise.algorithms import Algorithm
from mixwise.mixing import (
    consensus_distance,
    consensus_factor,
    gradient_mixing_error,
    heterogeneity,
)
from mixwise.network import Network
from mixwise.policies import Plan, Policy
from mixwise.tasks import Task
from mixwise.train.records import Record
from mixwise.train.training import OptimizerFactory, SchedulerFactory, Step, Training


def train(
    task: Task,
    network: Network,
    policy: Policy,
    algorithm: Algorithm,
    optimizer: OptimizerFactory,
    steps: int,
    *,
    scheduler: SchedulerFactory | None = None,
    clip: float | None = None,
    local_steps: int = 1,
    record_every: int = 1,
    evaluate_every: int = 1,
) -> Iterator[Record]:
    """Run `steps` steps and yield a record after every `record_every`-th of them, and after the last.

    Args:
        task, network, policy, algorithm, optimizer, scheduler, clip, local_steps: see `Training`.
        steps: how many.
        record_every: how often the mixing metrics are computed.
        evaluate_every: how often `task.evaluate` is called; always after the last step.

    Example:
        >>> import torch
        >>> from mixwise import algorithms, graphs, policies, tasks
        >>> from mixwise.network import SimulatedNetwork
        >>> runs = train(tasks.random_quadratics(8), SimulatedNetwork(graphs.ring(8)),
        ...              policies.HeterogeneityAware(), algorithms.DSGD(),
        ...              lambda rows: torch.optim.SGD(rows, lr=0.005), steps=3)
        >>> [record.step for record in runs]
        [0, 1, 2]
    """
    training = Training(
        task, network, policy, algorithm, optimizer, scheduler=scheduler, clip=clip, local_steps=local_steps
    )
    yield from records(training, steps, record_every, evaluate_every)


def records(training: Training, steps: int, record_every: int = 1, evaluate_every: int = 1) -> Iterator[Record]:
    """Take the run from where it is to `steps`."""
    while training.t < steps:
        step = training.step()
        last = training.t == steps
        evaluated = last or training.t % evaluate_every == 0
        if last or evaluated or training.t % record_every == 0:
            yield Record(step.t, _values(training, step, evaluated), step.seconds)


def _values(training: Training, step: Step, evaluated: bool) -> dict[str, float | str | int]:
    X, G, plan = training.model_rows, step.gradients, step.plan
    n, traffic = training.network.graph.n, training.network.traffic
    with np.errstate(over="ignore"):  # a run on its way to infinity is stopped soon, not warned about here
        values: dict[str, float | str | int] = {"loss": float(step.losses.mean())}
        if evaluated:
            values |= training.task.evaluate(X)
        values |= {"consensus_distance": consensus_distance(X), "heterogeneity": heterogeneity(G)}
        if plan is not None and plan.params:
            values |= _mixing_values(G, plan)
    if plan is not None and plan.solve is not None:
        values |= {"solve_status": plan.solve.status, "solve_iterations": plan.solve.iterations}
    return values | {"bytes_parameters": traffic.parameters / n, "bytes_sketches": traffic.sketches / n}


def _mixing_values(G: torch.Tensor, plan: Plan) -> dict[str, float]:
    """What the weights of a mixing do: GME before and after, absolute and relative; ζ′² and p."""
    before, after = heterogeneity(G) * len(G), gradient_mixing_error(G, plan.updates_product)
    return {
        "gradient_mixing_error_before": before,
        "gradient_mixing_error": after,
        "gradient_mixing_error_relative": after / before if before > 0 else 0.0,
        "relative_heterogeneity": after / len(G),
        "consensus_factor": consensus_factor(plan.params_product),
    }
