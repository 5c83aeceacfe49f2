"""From a training run to records."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mixwise.algorithms import Algorithm
from mixwise.network import Network
from mixwise.policies import Policy
from mixwise.tasks import Task
from mixwise.train.counts import check_counts
from mixwise.train.figures import mixing_figures
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


def records(
    training: Training,
    steps: int,
    record_every: int = 1,
    evaluate_every: int = 1,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Iterator[Record]:
    """Take the run from where it is to `steps`; `on_step` sees every step."""
    check_counts(steps=steps, record_every=record_every, evaluate_every=evaluate_every)
    while training.t < steps:
        step = training.step()
        on_step(step)
        last = training.t == steps
        evaluated = last or training.t % evaluate_every == 0
        if last or evaluated or training.t % record_every == 0:
            yield Record(step.t, _values(training, step, evaluated), step.seconds)


def _values(training: Training, step: Step, evaluated: bool) -> dict[str, float | str | int]:
    """What a record holds, the same on every process; all of them must ask for it."""
    X, network, plan = training.model_rows, training.network, step.plan
    n = network.graph.n
    with network.uncounted():
        values: dict[str, float | str | int] = {"loss": float(network.gather(step.losses[:, None]).mean())}
        if evaluated:
            values |= training.task.evaluate(X, network)
    values |= mixing_figures(X, step.gradients, plan, network)
    if plan is not None and plan.solve is not None:
        values |= {"solve_status": plan.solve.status, "solve_iterations": plan.solve.iterations}
    if getattr(network, "links", None) is not None:
        values["network_seconds"] = network.traffic.seconds
    return values | {"bytes_parameters": network.traffic.parameters / n, "bytes_sketches": network.traffic.sketches / n}
