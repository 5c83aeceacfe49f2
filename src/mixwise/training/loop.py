"""From a training run to records: the loop of `mixwise.train`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from mixwise.errors import TrainingError
from mixwise.graphs import Graph
from mixwise.graphs.spec import as_graph
from mixwise.network import FaultyNetwork, GuardedNetwork, SimulatedNetwork
from mixwise.network.guarded import OnBad, Robust, unguarded
from mixwise.policies.choice import PolicyLike
from mixwise.protocols import Algorithm, Context, Network, Task
from mixwise.tasks import ModuleTask, QuadraticTask
from mixwise.training.checks import check_arguments, check_counts
from mixwise.training.figures import OF_OTHERS, mixing_figures
from mixwise.training.training import OptimizerFactory, SchedulerFactory, Step, Training

if TYPE_CHECKING:
    import networkx

RECORDED = (
    "loss", "consensus_distance", "heterogeneity", "gradient_mixing_error", "gradient_mixing_error_relative",
    "gradient_mixing_error_before", "relative_heterogeneity", "consensus_factor", *OF_OTHERS, "solve_iterations",
    "solves", "solves_failed", "messages_lost", "nodes_away", "network_seconds", "bytes_parameters", "bytes_sketches",
)  # fmt: skip
"""The numbers that records may hold besides those of `task.evaluate`."""


@dataclass(frozen=True)
class Record:
    """The values and timings of step t.

    `values` holds only what the seed determines; `seconds` holds wall-clock times, which it does not. Parameters are
    judged after the mixing of step t, gradients as they were in it. The mixing error and the consensus factor are of the
    last optimized weights since the record before, those with the suffix "_unoptimized" of the last other weights if both
    kinds were used; all are evaluated on the gradients of step t.
    """

    step: int
    values: dict[str, Any]
    seconds: dict[str, float]

    def to_json(self) -> str:
        """Return the values as one line of JSON, with all digits of every number."""
        return json.dumps({"step": self.step, **self.values})

    def timings_to_json(self) -> str:
        """Return the wall-clock times as one line of JSON."""
        return json.dumps({"step": self.step, **{name: round(value, 6) for name, value in self.seconds.items()}})


def train(
    task: Task,
    graph: Graph | Network | str | networkx.Graph[Any],
    policy: PolicyLike = "auto",
    algorithm: Algorithm | str | None = None,
    *,
    optimizer: OptimizerFactory,
    steps: int,
    scheduler: SchedulerFactory | None = None,
    clip: float | None = None,
    local_steps: int = 1,
    robust: Robust = "none",
    on_bad: OnBad = "stop",
    record_every: int = 1,
    evaluate_every: int | None = None,
    seed: int = 0,
) -> Iterator[Record]:
    """Train for `steps` steps and yield a record after every `record_every`-th of them, and after the last.

    Args:
        task: what is learned, and which node holds what.
        graph: the communication graph, whose nodes are simulated in this process: a `Graph`, a spec such as "ring:8",
            or a networkx graph; or a network of your own.
        policy: the weights of each mixing: a policy, a mixing matrix, "auto" or the name of a weighting scheme, or a
            function of the graph.
        algorithm: what is mixed, as an object or by name; D-SGD by default.
        optimizer: makes the optimizer, e.g. `lambda rows: torch.optim.SGD(rows, lr=0.1)`.
        steps: the length of the run.
        scheduler, clip, local_steps: see `Training`.
        robust, on_bad: protection against broken or hostile nodes; see `GuardedNetwork`.
        record_every: how often the mixing metrics are computed.
        evaluate_every: how often `task.evaluate` is called; always after the last step. By default at every step of a
            quadratic task, where it costs next to nothing, and otherwise after the last step only.
        seed: names the random streams of policy and algorithm.

    Example:
        >>> import torch
        >>> import mixwise as mw
        >>> run = mw.train(mw.tasks.random_quadratics(8), mw.graphs.ring(8),
        ...                optimizer=lambda rows: torch.optim.SGD(rows, lr=0.005), steps=3)
        >>> [record.step for record in run]
        [0, 1, 2]
    """
    check_arguments(task, optimizer, scheduler)
    own = isinstance(getattr(graph, "graph", None), Graph)  # a network, which no value that means a graph is
    network = cast(Network, graph) if own else SimulatedNetwork(as_graph(graph))
    check_counts(steps=steps, record_every=record_every)
    evaluate_every = usual_evaluation(task, steps) if evaluate_every is None else evaluate_every
    training = Training(
        task, network, policy, algorithm, optimizer, scheduler=scheduler, clip=clip, local_steps=local_steps,
        robust=robust, on_bad=on_bad, context=Context(network.graph, seed=seed),
    )  # fmt: skip
    return records(training, steps, record_every, evaluate_every)


def usual_evaluation(task: Task, steps: int) -> int:
    """How often a run is evaluated unless it says so: every step where that is cheap, otherwise after the last one."""
    return 1 if isinstance(task, QuadraticTask) else steps


def _moved(*args: object, **options: object) -> None:
    raise TrainingError(
        "mixwise.train.train is now mixwise.train; call mixwise.train(task, graph, optimizer=…, steps=…)"
    )


train.train = _moved  # type: ignore[attr-defined]  # until 0.1 it was a function in a package of this name


def records(
    training: Training,
    steps: int,
    record_every: int = 1,
    evaluate_every: int = 1,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Iterator[Record]:
    """Continue a run to `steps` and yield its records; `on_step` sees every step."""
    check_counts(steps=steps, record_every=record_every, evaluate_every=evaluate_every)
    _check_names(training.task)
    while training.t < steps:
        step = training.step()
        on_step(step)
        last = training.t == steps
        evaluated = last or training.t % evaluate_every == 0
        if last or evaluated or training.t % record_every == 0:
            record = Record(step.t, _values(training, step, evaluated), step.seconds)
            training.driver.history.clear()
            yield record


def _check_names(task: Task) -> None:
    """Reject metrics of a user that would take the place of other numbers in the records."""
    taken = {"step", *RECORDED} & set(task.metrics) if isinstance(task, ModuleTask) else None
    if taken:
        name = min(taken)
        raise TrainingError(f"metrics: records hold another number named {name!r}; choose a name such as test_{name}")


def _values(training: Training, step: Step, evaluated: bool) -> dict[str, Any]:
    """The values of a record, the same on every process; a collective call."""
    X, network, history = training.models, training.network, training.driver.history
    n = network.graph.n
    with network.traffic.pause():
        values: dict[str, Any] = {"loss": float(network.gather(step.losses[:, None]).mean())}
        if evaluated:
            values |= training.task.evaluate(X, network)
    values |= mixing_figures(X, step.gradients, history, network) | history.solve_figures()
    for each in dict.fromkeys((network, unguarded(network))):
        if isinstance(each, FaultyNetwork | GuardedNetwork):
            values |= each.figures()
    if network.links is not None:
        values["network_seconds"] = network.traffic.seconds
    return values | {"bytes_parameters": network.traffic.parameters / n, "bytes_sketches": network.traffic.sketches / n}
