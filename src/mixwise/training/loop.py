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


def whole_rounds(steps: int, local_steps: int) -> int:
    """Return a number of steps rounded up to whole rounds: local steps, and the mixing after them.

    >>> whole_rounds(100, 8), whole_rounds(96, 8)
    (104, 96)
    """
    return -(-steps // local_steps) * local_steps


def rounding_note(local_steps: int, steps: int, **every: int | None) -> str:
    """Say which numbers of a run are rounded up to whole rounds; empty if none is.

    An interval of 1, which means as often as possible, and one that was not given, are not worth a word.

    >>> rounding_note(8, 100, record_every=1)
    'local_steps = 8: models are evaluated right after a mixing, so steps = 100 become 104'
    >>> rounding_note(8, 96, evaluate_every=None)
    ''
    """
    given = {name: count for name, count in every.items() if count is not None and count > 1}
    rounded = {name: (count, whole_rounds(count, local_steps)) for name, count in {"steps": steps, **given}.items()}
    told = [
        f"{name} = {old} {'become' if name == 'steps' else 'becomes'} {new}"
        for name, (old, new) in rounded.items()
        if new != old
    ]
    why = f"local_steps = {local_steps}: models are evaluated right after a mixing, so "
    return why + ", ".join(told) if told else ""


def records(
    training: Training,
    steps: int,
    record_every: int = 1,
    evaluate_every: int = 1,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Iterator[Record]:
    """Continue a run to `steps` and yield its records; `on_step` sees every step.

    The counts are rounded up to whole rounds of local steps, so that every record follows a mixing: in between, the
    nodes' models have moved apart by a part of a round. Meanwhile torch uses as many threads as the work is worth, and
    between two records as many as before.
    """
    check_counts(steps=steps, record_every=record_every, evaluate_every=evaluate_every)
    steps, record_every, evaluate_every = (
        whole_rounds(count, training.local_steps) for count in (steps, record_every, evaluate_every)
    )
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
    seen = network.measuring()
    values: dict[str, Any] = {"loss": float(seen.gather(step.losses[:, None]).mean())}
    if evaluated:
        task = training.task
        part = {"interim": interim} if isinstance(task, ModuleTask) and task.interim_test is not None else {}
        values |= task.evaluate(X, seen, **part)
    values |= mixing_figures(X, step.gradients, history, network) | history.solve_figures()
    for each in dict.fromkeys((network, unguarded(network))):
        if isinstance(each, FaultyNetwork | GuardedNetwork):
            values |= each.figures()
    if network.links is not None:
        values["network_seconds"] = network.traffic.seconds
    if history.left_graph:
        values["left_graph"] = True
    return values | {"bytes_parameters": network.traffic.parameters / n, "bytes_sketches": network.traffic.sketches / n}
