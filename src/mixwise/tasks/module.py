"""Training any `nn.Module`: every node has its own copy, as views of its row of X, and its own data.

Legend: X, G (m, d); losses (m,); B (m, b), the buffers of the nodes' modules.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from mixwise.data import Dataset, LabelStreams, Partition
from mixwise.data.dataset import drawn
from mixwise.errors import TrainingError
from mixwise.protocols import State, Task
from mixwise.report.records import higher_is_better
from mixwise.seeding import stream
from mixwise.tasks.arguments import NO_TEST, Metric, accuracy, checked_arguments, made, misfit
from mixwise.tasks.buffers import NodeBuffers, load_model_state, mean_row, model_state, set_buffers
from mixwise.tasks.compiled import Compiler, outputs
from mixwise.tasks.devices import checked_device, own_randomness
from mixwise.tasks.gradients import Gradients, LocalPass, Loss, NodeByNode, faster
from mixwise.tasks.inputs import Augment, Inputs
from mixwise.tasks.others import AllHere, Others
from mixwise.tasks.rows import GroupOf, RowLayout
from mixwise.tasks.stacked import Stacked, StackedBlocks, correct

_CACHED, _FEWEST = 1 << 20, 256  # numbers of the rows and batches that are stacked, and nodes
_EVALUATED = 1 << 18  # numbers of the inputs that are evaluated at once: the activations should stay in the cache

BufferPolicy: TypeAlias = Literal["local", "averaged"]
Way: TypeAlias = NodeByNode | Stacked | StackedBlocks  # called for the losses, it writes the gradients at X into G


class ModuleTask(Task):
    """One module, one loss, and a dataset that is divided over nodes.

    Args:
        module: makes the module, or is one, which is copied; every node starts from the same parameters and buffers.
            Frozen parameters (`requires_grad=False`) are shared by all nodes and are not part of the rows.
        data: the training set.
        partition: which samples each node holds; also one list of indices per node.
        batch: samples per node and step.
        test: the common test set, for `evaluate`.
        interim_samples: samples of the test set that evaluations before the last one of a run use, drawn once for all
            seeds; by default all.
        test_batch: samples that are evaluated at once; by default 100 to 1000, depending on their size.
        loss: of outputs and labels, averaged over the batch; by default the cross-entropy, or the squared error for
            targets that are numbers.
        metrics: by name, what `evaluate` computes on the test set: functions of outputs and labels, averaged over the
            batch. By default the accuracy, or the loss for targets that are numbers. A name that starts with accuracy,
            auc, f1, precision, r2, recall or score is better if higher; any other is an error.
        augment: changes a batch of inputs at random.
        gradients: "loop", "stacked", "auto" (stacked if every layer with parameters is dense), or "measure": both
            are timed on the first batch, and the faster one is kept. They agree up to rounding.
        buffers: "local": every node keeps its own, such as the statistics of BatchNorm; "averaged": they are mixed
            like the parameters.
        group_of: the optimizer group of a parameter, e.g. to exclude norms and biases from weight decay.
        accumulate: the number of pieces in which a node's batch is computed: less memory, the same gradients.
        autocast: torch.bfloat16: products in this precision, parameters and gradients in `dtype`.
        compile: whether the passes of a node, in training and in evaluation, go through torch.compile, which needs a
            C++ compiler on a CPU. It pays for convolutions; results agree up to rounding.
        device, dtype: of the rows.
        seed: of the order of the data, augmentation and random layers.
    """

    layout: RowLayout

    def __init__(
        self,
        module: Callable[[], nn.Module] | nn.Module,
        data: Dataset,
        partition: Partition | LabelStreams | Sequence[npt.ArrayLike],
        *,
        batch: int = 32,
        test: Dataset | None = None,
        interim_samples: int | None = None,
        test_batch: int | None = None,
        loss: Loss | None = None,
        metrics: Mapping[str, Metric] | None = None,
        augment: Augment | None = None,
        gradients: Gradients = "auto",
        buffers: BufferPolicy = "local",
        group_of: GroupOf = lambda name, parameter: 0,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        accumulate: int = 1,
        autocast: torch.dtype | None = None,
        compile: bool = False,
        seed: int = 0,
    ) -> None:
        if buffers not in ("local", "averaged"):
            raise TrainingError(f'buffers = {buffers!r}; choose "local" or "averaged"')
        self.partition, self.loss, self.metrics = checked_arguments(data, test, partition, loss, metrics)
        self.data, self.test, self.nodes = data, test, len(self.partition)
        self.interim_test: Dataset | None = None  # of evaluations before the last one, if it is another one
        if test is not None and interim_samples is not None:
            self.interim_test = test.subset(drawn(len(test), interim_samples, "interim_samples", test.name))
        self.batch, self.seed, self.buffers = batch, seed, buffers
        self.device, self.dtype = checked_device(device, dtype), dtype
        self.template = made(module).to(device=self.device, dtype=dtype)
        if not self.template.training:  # else a part that was put into eval mode, such as a frozen norm, stays there
            self.template.train()
        self.layout = RowLayout(self.template, group_of)
        compiler = Compiler(compile)
        self.local = LocalPass(self.template, self.layout, self.loss, seed, accumulate, autocast, compiler)
        self.local.check(batch, dtype, self.device)
        self.gradients = self.local.chosen(gradients, data)
        self._measures = self.gradients == "measure"
        self.inputs = Inputs(data, self.partition, batch, augment, self.device, dtype, seed)
        in_memory = isinstance(data.x, torch.Tensor)
        usual = min(1000, max(100, _EVALUATED // self.inputs.sample_size)) if in_memory else 100
        self.test_batch = test_batch or usual
        self.node_accuracies: torch.Tensor | None = None  # (n,), of the last evaluation, for pictures
        self._runs = WeakTensorKeyDictionary()  # the rows of a run -> the run
        self._run: _Run | None = None  # the one that was started or continued last

    def initial(self, nodes: Sequence[int]) -> torch.Tensor:
        """Return the same starting row for every node: the rows of a new run, with buffers of its own."""
        X = self.layout.flatten(self.template).repeat(len(nodes), 1)
        self._run = self._started(X, nodes)
        return X

    def losses_and_gradients(
        self, X: torch.Tensor, nodes: Sequence[int], step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return losses (m,) and gradients (m, d) on each node's batch of this step; G is reused by the next call."""
        # Other rows of the same nodes, such as those that push-sum computes, belong to the run that was continued last.
        run = self._run_of(X)
        if run is None or run.nodes != list(nodes):
            run = self._started(X, nodes)
        self._run = run
        if self.gradients == "measure":
            self.gradients = self._measured(X, run, step)
        way = run.bound(X, lambda G: self.way(self.gradients, X, G, run.buffers))
        try:
            return way(nodes, step, self.inputs), way.G
        except (RuntimeError, IndexError, ValueError, TypeError, AttributeError) as error:
            reason = misfit(self.template, self.loss, self.data.classes, *self.inputs.one(nodes[0], step))
            if reason is None:
                raise
            raise TrainingError(reason) from error

    def _run_of(self, X: torch.Tensor) -> _Run | None:
        run: _Run | None = self._runs.get(X, self._run)  # type: ignore[no-untyped-call]
        return run

    def _started(self, X: torch.Tensor, nodes: Sequence[int]) -> _Run:
        run = self._runs[X] = _Run(list(nodes), NodeBuffers(self.template, len(X), self.dtype))
        return run

    def way(self, name: str, X: torch.Tensor, G: torch.Tensor, buffers: NodeBuffers) -> Way:
        """Return the way to compute the gradients of these rows, by name."""
        if name != "stacked":
            return NodeByNode(self.local, X, G, buffers)
        size = self.nodes_at_once
        return Stacked(self.local, X, G) if len(X) <= size else StackedBlocks(self.local, X, G, size)

    @property
    def nodes_at_once(self) -> int:
        """The number of nodes that are stacked: what they compute should stay in the cache."""
        return max(_FEWEST, _CACHED // (self.layout.dim + self.batch * self.inputs.sample_size))

    def _measured(self, X: torch.Tensor, run: _Run, step: int) -> Literal["loop", "stacked"]:
        buffers = copy.deepcopy(run.buffers)
        loop, stacked = (self.way(name, X, torch.empty_like(X), buffers) for name in ("loop", "stacked"))
        return faster(loop, stacked, run.nodes, step, self.inputs)

    # --- models ---
    def module_of(self, row: torch.Tensor, buffers: Mapping[str, torch.Tensor] | None = None) -> nn.Module:
        """Return a copy of the module with the parameters of one row, and these buffers or those it started with."""
        return copy.deepcopy(self._view(row.to(self.device, self.dtype), buffers or {}))

    def node_module(self, X: torch.Tensor, i: int) -> nn.Module:
        """Return the model of the node at row i: its parameters and its buffers, copied."""
        return self.module_of(X[i], self._buffers(X).of(i))

    def average_module(self, X: torch.Tensor) -> nn.Module:
        """Return the averaged model: the mean of the parameters and of the buffers."""
        return self.module_of(mean_row(X), self._buffers(X).average())

    def _buffers(self, X: torch.Tensor) -> NodeBuffers:
        run = self._run_of(X)
        if run is None or len(run.nodes) != len(X):
            return NodeBuffers(self.template, len(X), self.dtype)
        return run.buffers

    # --- metrics ---
    def evaluate(self, X: torch.Tensor, others: Others | None = None, *, interim: bool = False) -> dict[str, float]:
        """Return each metric on the test set: mean over nodes, worst node, spread, and the averaged model.

        With `interim`, on `interim_samples` of it.
        """
        test = self.interim_test if interim and self.interim_test is not None else self.test
        if test is None:
            raise TrainingError(NO_TEST)
        buffers, others = self._buffers(X), others or AllHere(len(X))
        mean, mean_buffers = mean_row(X, others), buffers.average(others)  # all processes take part
        many, simple = len(X) > self.nodes_at_once, self.metrics == {"accuracy": accuracy}
        stacked = many and simple and self.gradients == "stacked"
        modules = [] if stacked else [self._view(row, buffers.of(i)) for i, row in enumerate(X)]
        if others.nodes.start == 0:  # the averaged model is evaluated once, by the process of the first node
            modules.append(self._view(mean, mean_buffers))
        found = self.scores(modules, test, self.metrics)
        if stacked:
            found = torch.cat([self._stacked_accuracies(X, test)[:, None], found])
        own = torch.zeros(len(X), 2 * len(self.metrics), dtype=torch.float64)  # of each node; of the averaged model
        own[:, : len(self.metrics)] = found[: len(X)]
        if len(found) > len(X):
            own[:, len(self.metrics) :] = found[len(X)]  # in every row: some are left out of what is measured
        values: dict[str, float] = {}
        nodes, average = others.gather(own).tensor_split(2, dim=1)
        for name, each, averaged in zip(self.metrics, nodes.T, average[0], strict=True):
            worst = each.min() if higher_is_better(name) else each.max()
            values |= {name: float(each.mean()), f"{name}_worst": float(worst)}
            values |= {f"{name}_spread": float(each.std(correction=0)), f"{name}_average_model": float(averaged)}
        self.node_accuracies = nodes[:, list(self.metrics).index("accuracy")] if "accuracy" in self.metrics else None
        return values

    def _stacked_accuracies(self, X: torch.Tensor, data: Dataset) -> torch.Tensor:
        """Return the accuracies of the models of many rows, float64 (m,)."""
        template = copy.deepcopy(self.template).eval()
        found = ((x.to(self.device), y.to(self.device)) for x, y in data.batches(self.test_batch))
        batches = ((self.inputs.as_input(x), y) for x, y in found)
        return correct(template, self.layout, X, batches, self.nodes_at_once) / len(data)

    def accuracy(self, module: nn.Module, data: Dataset) -> float:
        """Return the share of samples that a module, put into eval mode, classifies as labeled."""
        return float(self.scores([module], data, {"accuracy": accuracy}))

    @torch.no_grad()
    def scores(self, modules: Sequence[nn.Module], data: Dataset, metrics: Mapping[str, Metric]) -> torch.Tensor:
        """Return the metrics of several modules, float64 (modules, metrics); every sample is read once for all."""
        sums = torch.zeros(len(modules), len(metrics), dtype=torch.float64)
        modules = [module.eval() for module in modules]
        with own_randomness(self.device) as reseed:
            for number, (x, y) in enumerate(data.batches(self.test_batch)):
                x, y = self.inputs.as_input(x.to(self.device)), self.inputs.as_input(y.to(self.device))
                # A last batch that is shorter would be compiled for itself.
                call = self.local.compiler if len(y) == self.test_batch else _directly
                for i, module in enumerate(modules):
                    reseed(stream(self.seed, "evaluate", number))
                    found = call(outputs, module, x)
                    for k, metric in enumerate(metrics.values()):
                        sums[i, k] += float(metric(found, y)) * len(y)
        return sums / len(data)

    def _view(self, row: torch.Tensor, buffers: Mapping[str, torch.Tensor]) -> nn.Module:
        set_buffers(module := self.layout.module(self.template, row), buffers)
        return module

    @cached_property
    def label_counts(self) -> npt.NDArray[np.int64] | None:  # type: ignore[override]  # computed on demand
        """The number of samples of each label on each node, (n, classes); None for targets that are numbers."""
        return self.partition.label_counts(self.data.y, self.data.classes) if self.data.classes else None

    # --- state besides the rows ---
    @property
    def mixed_buffers(self) -> torch.Tensor | None:  # type: ignore[override]  # those of the current run
        """B (m, b) of the run, to be mixed in place like the parameters; None if no buffers are mixed."""
        if self.buffers == "local" or self.gradients == "stacked" or self._run is None:  # stacked: they never change
            return None
        return self._run.buffers.B if self._run.buffers.B.numel() > 0 else None

    def state(self) -> State:
        """Return the buffers of all nodes, and the frozen and tied parameters that a complete model needs."""
        state = model_state(self.template, self._started_run.buffers)
        if self._measures and self.gradients != "measure":
            # One row per node: processes that measure it separately may choose differently.
            count = len(self._started_run.nodes)
            state.rows["stacked"] = torch.full((count, 1), self.gradients == "stacked", dtype=torch.uint8)
        return state

    def load_state(self, state: State) -> None:
        """Continue from the state of a run of the same task."""
        if "stacked" in state.rows and self._measures:
            self.gradients = "stacked" if bool(state.rows["stacked"][0]) else "loop"
        load_model_state(self.template, self._started_run.buffers, state)

    @property
    def _started_run(self) -> _Run:
        if self._run is None:
            raise TrainingError("no run has been started; its rows come from initial(nodes)")
        return self._run


def _directly(function: Callable[..., torch.Tensor], *arguments: Any) -> torch.Tensor:
    return function(*arguments)


class _Run:
    """The rows of one run: their nodes, their buffers, and the way to compute their gradients."""

    def __init__(self, nodes: list[int], buffers: NodeBuffers) -> None:
        self.nodes, self.buffers = nodes, buffers
        self._way: Way | None = None
        self._at: tuple[int, torch.Size] | None = None

    def bound(self, X: torch.Tensor, make: Callable[[torch.Tensor], Way]) -> Way:
        """Return the way, made by the first call; it is bound again only if the rows are others than before."""
        at = (X.data_ptr(), X.shape)
        if self._way is None:
            self._way = make(torch.zeros_like(X))
        elif self._at != at:
            self._way.bind(X)
        self._at = at
        return self._way
