"""The run that `mixwise.train` returns: iterate over its records, or ask it for its models."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from mixwise.errors import TrainingError
from mixwise.graphs.spec import GraphLike
from mixwise.network import Faults, Link, Links, Network
from mixwise.network.building import as_network
from mixwise.network.guarded import OnBad, Robust
from mixwise.policies.choice import PolicyLike, in_turn
from mixwise.protocols import Algorithm, Context, Task
from mixwise.storage import replacing
from mixwise.tasks import ModuleTask
from mixwise.training.checks import check_arguments, check_counts
from mixwise.training.loop import Record, records, rounding_note, usual_evaluation, whole_rounds
from mixwise.training.training import OptimizerFactory, SchedulerFactory, Training

_log = logging.getLogger(__name__)


def train(
    task: Task,
    graph: GraphLike | Sequence[GraphLike] | Network,
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
    wire_dtype: torch.dtype | str | None = None,
    links: Link | Links | None = None,
    faults: Faults | None = None,
    record_every: int = 1,
    evaluate_every: int | None = None,
    seed: int = 0,
) -> TrainingRun:
    """Return a run of `steps` steps, with all nodes simulated in this process.

    The run trains as its records are iterated over, one after every `record_every`-th step and after the last, or as it
    is asked for its result: `run.last`, `run.records`, `run.models()`, `run.average_model()`, `run.save(path)`.

    Args:
        task: what is learned, and which node holds what.
        graph: the communication graph: a `Graph`, a spec such as "ring:8", or a networkx graph; several of them, which
            take turns, one per mixing; or a network of your own.
        policy: the weights of each mixing: a policy, a mixing matrix, "auto" or the name of a weighting scheme, or a
            function of the graph. With several graphs, a scheme or a function that makes a matrix; "auto" then means
            Metropolis-Hastings weights.
        algorithm: what is mixed, as an object or by name; D-SGD by default.
        optimizer: makes the optimizer, e.g. `lambda rows: torch.optim.SGD(rows, lr=0.1)`.
        steps: the length of the run; with `local_steps`, rounded up to whole rounds, so that it ends with a mixing.
        scheduler, clip, local_steps: see `Training`.
        robust, on_bad: protection against broken or hostile nodes; see `GuardedNetwork`.
        wire_dtype: torch.bfloat16 or torch.int8, or their names: rows are rounded for the message.
        links: how long messages take, to count simulated time.
        faults: messages that are lost, nodes that are away, late or hostile.
        record_every: how often the mixing metrics are computed; after a mixing, so rounded up like `steps`.
        evaluate_every: how often `task.evaluate` is called, rounded up as well; always after the last step. By default
            at every mixing of a quadratic task, where it costs next to nothing, and otherwise after the last step only.
        seed: names the random streams of policy, algorithm and faults.

    Example:
        >>> import mixwise as mw
        >>> run = mw.train(mw.tasks.random_quadratics(8), mw.graphs.ring(8),
        ...                optimizer=lambda rows: torch.optim.SGD(rows, lr=0.005), steps=3)
        >>> [record.step for record in run]
        [0, 1, 2]
    """
    check_arguments(task, optimizer, scheduler)
    check_counts(steps=steps, record_every=record_every)
    one: GraphLike | Network
    if isinstance(graph, list | tuple):
        one, policy = in_turn(graph, policy)
    else:
        one = cast(GraphLike | Network, graph)
    network = as_network(one, seed, links=links, wire_dtype=wire_dtype, faults=faults)
    if evaluate_every is not None:
        check_counts(evaluate_every=evaluate_every)
    training = Training(
        task, network, policy, algorithm, optimizer, scheduler=scheduler, clip=clip, local_steps=local_steps,
        robust=robust, on_bad=on_bad, context=Context(network.graph, seed=seed),
    )  # fmt: skip
    if note := rounding_note(local_steps, steps, record_every=record_every, evaluate_every=evaluate_every):
        _log.warning(note)
    return TrainingRun(training, steps, record_every, evaluate_every or usual_evaluation(task, steps))


class TrainingRun:
    """A training run that trains as far as it is asked.

    Iterating yields one record after the other and trains in between; iterating again begins with the first record and
    trains nothing twice. Everything else trains to the end first.

    Args:
        training: the rows, the optimizer and the driver of the run.
        steps: the length of the run.
        record_every, evaluate_every: the number of steps from one record, or evaluation, to the next. As `steps`, they
            are rounded up to whole rounds of local steps.

    Example:
        >>> import mixwise as mw
        >>> run = mw.train(mw.tasks.random_quadratics(8), "ring:8", steps=20,
        ...                optimizer=lambda rows: torch.optim.SGD(rows, lr=0.005))
        >>> len(run.records), run.last.step, run.training.X.shape
        (20, 19, torch.Size([8, 10]))
    """

    def __init__(self, training: Training, steps: int, record_every: int, evaluate_every: int) -> None:
        self.training, self.steps = training, whole_rounds(steps, training.local_steps)
        self._coming = records(training, steps, record_every, evaluate_every)
        self._seen: list[Record] = []
        self._asked = False  # whether a result was asked for

    def __iter__(self) -> Iterator[Record]:
        """Yield the records of the run, and train where they are not known yet."""
        self._asked = True
        return self._records()

    def _records(self) -> Iterator[Record]:
        number = 0
        while number < len(self._seen) or self._advance():
            yield self._seen[number]
            number += 1

    def _advance(self) -> bool:
        """Train up to the next record; return False at the end of the run."""
        for record in self._coming:
            self._seen.append(record)
            return True
        if self.training.t < self.steps:
            raise TrainingError(
                f"the run was interrupted in step {self.training.t} of {self.steps} and cannot continue; start it again"
            )
        return False

    @property
    def records(self) -> list[Record]:
        """All records; trains to the end."""
        return list(self)

    @property
    def last(self) -> Record:
        """The last record; trains to the end."""
        return self.records[-1]

    def models(self) -> list[nn.Module]:
        """Train to the end and return the model of every node, in eval mode."""
        task, X = self._trained()
        return [task.node_module(X, node).eval() for node in range(len(X))]

    def average_model(self) -> nn.Module:
        """Train to the end and return the averaged model, in eval mode."""
        task, X = self._trained()
        return task.average_module(X).eval()

    def save(self, path: str | Path, node: int | None = None) -> None:
        """Train to the end and write the averaged model, or that of one node, as a `state_dict` in safetensors.

        Args:
            path: the file; load it with `safetensors.torch.load_file`.
            node: the node whose model is written instead of the average.
        """
        path, self._asked = Path(path), True
        if path.suffix != ".safetensors":
            raise TrainingError(f"{path} cannot be written; give a file that ends in .safetensors")
        task, X = self._trained()
        if node is not None and not 0 <= node < len(X):
            raise TrainingError(f"node = {node}; the nodes are 0 to {len(X) - 1}")
        model = task.average_module(X) if node is None else task.node_module(X, node)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        try:
            with replacing(path) as temporary:
                save_file(state, temporary)
        except (SafetensorError, OSError) as error:
            raise TrainingError(f"{path} cannot be written: {error}") from None

    def _trained(self) -> tuple[ModuleTask, torch.Tensor]:
        """Train to the end and return the task and the rows of its models."""
        task, self._asked = self.training.task, True
        if not isinstance(task, ModuleTask):
            raise TrainingError(
                f"{type(task).__name__} has no modules; `run.training.models` holds the parameters of the nodes, (n, d)"
            )
        for _ in self:
            pass
        return task, self.training.models

    def __repr__(self) -> str:
        return f"<TrainingRun: {self.training.t} of {self.steps} steps>"

    def __del__(self) -> None:
        if not self._asked:
            warnings.warn(
                "mixwise.train was called, but nothing was trained: a run trains when it is iterated over or asked for "
                "its result, such as mixwise.train(…).last",
                stacklevel=2,
            )
