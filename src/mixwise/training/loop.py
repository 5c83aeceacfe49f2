"""From a training run to records: the loop of `mixwise.train`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mixwise.errors import TrainingError
from mixwise.network import FaultyNetwork, GuardedNetwork
from mixwise.network.guarded import unguarded
from mixwise.protocols import Task
from mixwise.tasks import ModuleTask, QuadraticTask
from mixwise.training.checks import check_counts
from mixwise.training.figures import OF_OTHERS, mixing_figures
from mixwise.training.threads import suitable_threads, threads
from mixwise.training.training import Step, Training

RECORDED = (
    "loss", "consensus_distance", "heterogeneity", "gradient_mixing_error", "gradient_mixing_error_relative",
    "gradient_mixing_error_before", "relative_heterogeneity", "consensus_factor", *OF_OTHERS, "solve_iterations",
    "solves", "solves_failed", "messages_lost", "nodes_away", "network_seconds", "bytes_parameters", "bytes_sketches",
)  # fmt: skip
"""The numbers that records may hold besides those of `task.evaluate`."""


@dataclass(frozen=True)
class Record:
    """The values and timings of step t.

    `values` holds what the seed determines; `seconds` holds wall-clock times, which it does not, and `threads` is the
    number of threads that torch used. Parameters are judged
    after the mixing of step t, gradients as they were in it. The mixing error and the consensus factor are those of the
    last optimized weights since the record before. If other weights were used too, figures with the suffix
    "_unoptimized" are those of the last of them. All are evaluated on the gradients of step t.
    """

    step: int
    values: dict[str, Any]
    seconds: dict[str, float]
    threads: int = 1

    def to_json(self) -> str:
        """Return the values as one line of JSON, with all digits of every number."""
        return json.dumps({"step": self.step, **self.values})

    def timings_to_json(self) -> str:
        """Return the wall-clock times and the number of threads as one line of JSON."""
        seconds = {name: round(value, 6) for name, value in self.seconds.items()}
        return json.dumps({"step": self.step, **seconds, "threads": self.threads})


def usual_evaluation(task: Task, steps: int) -> int:
    """How often a run is evaluated unless it says so: every step where that is cheap, otherwise after the last one."""
    return 1 if isinstance(task, QuadraticTask) else steps


def records(
    training: Training,
    steps: int,
    record_every: int = 1,
    evaluate_every: int = 1,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Iterator[Record]:
    """Continue a run to `steps` and yield its records; `on_step` sees every step.

    Meanwhile torch uses as many threads as the work is worth, and between two records as many as before.
    """
    check_counts(steps=steps, record_every=record_every, evaluate_every=evaluate_every)
    _check_names(training.task)
    number = suitable_threads(training.task, training.X)
    while training.t < steps:
        with threads(number):
            step = training.step()
            on_step(step)
            last = training.t == steps
            evaluated = last or training.t % evaluate_every == 0
            if not (evaluated or training.t % record_every == 0):
                continue
            record = Record(step.t, _values(training, step, evaluated, interim=not last), step.seconds, number)
            training.driver.history.clear()
        yield record


def _check_names(task: Task) -> None:
    """Reject metrics of a user that would take the place of other numbers in the records."""
    names = set(task.metrics) if isinstance(task, ModuleTask) else set()
    if taken := names & {"step", "solve_status", "left_graph", *RECORDED}:
        name = min(taken)
        raise TrainingError(f"metrics: records hold another number named {name!r}; choose a name such as test_{name}")


def _values(training: Training, step: Step, evaluated: bool, *, interim: bool) -> dict[str, Any]:
    """The values of a record, the same on every process; a collective call."""
    X, network, history = training.models, training.network, training.driver.history
    n = network.graph.n
    with network.traffic.pause():
        values: dict[str, Any] = {"loss": float(network.gather(step.losses[:, None]).mean())}
        if evaluated:
            task = training.task
            part = {"interim": interim} if isinstance(task, ModuleTask) and task.interim_test is not None else {}
            values |= task.evaluate(X, network, **part)
    values |= mixing_figures(X, step.gradients, history, network) | history.solve_figures()
    for each in dict.fromkeys((network, unguarded(network))):
        if isinstance(each, FaultyNetwork | GuardedNetwork):
            values |= each.figures()
    if network.links is not None:
        values["network_seconds"] = network.traffic.seconds
    if history.left_graph:
        values["left_graph"] = True
    return values | {"bytes_parameters": network.traffic.parameters / n, "bytes_sketches": network.traffic.sketches / n}
