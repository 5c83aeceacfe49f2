"""The commonest mistakes are explained, and what is unambiguous is accepted."""

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn

import mixwise as mw
from builders import cases, refused, sgd

LR = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
X, Y = torch.randn(24, 6), torch.arange(24) % 3
DATA = mw.data.Dataset(X, Y, 3)
PARTS = [list(range(node, 24, 4)) for node in range(4)]


def last(**options):
    task = mw.tasks.random_quadratics(4)
    *_, last = mw.train(**{"task": task, "graph": mw.graphs.ring(4), "optimizer": sgd(), "steps": 2, **options})
    return last.values


def trained(module, **options):
    task = mw.tasks.ModuleTask(module, DATA, PARTS, batch=6, test=DATA, **options)
    return mw.train(task, "ring:4", optimizer=sgd(), steps=1).last


def test_graphs_and_algorithms_may_be_named():
    assert last(graph="ring:4") == last(graph=nx.cycle_graph(4)) == last()
    assert last(algorithm="d2") == last(algorithm=mw.algorithms.D2()) != last()


@cases(
    "options, says",
    ({"graph": mw.graphs.ring}, "graph is the function ring; pass"),
    ({"graph": np.eye(4)}, "graph is an object of type ndarray.*from_adjacency"),
    ({"policy": mw.graphs.ring(4)}, "policy is an object of type Graph"),
    ({"policy": mw.HeterogeneityAware}, r"policy is the class HeterogeneityAware; .*HeterogeneityAware\(\)"),
    ({"algorithm": mw.algorithms.D2}, r"algorithm is the class D2; pass an algorithm such as D2\(\)"),
    ({"algorithm": mw.HeterogeneityAware()}, "algorithm is an object of type HeterogeneityAware"),
    ({"optimizer": LR}, "optimizer is an object of type SGD; pass a function that makes it for the rows: .*lambda"),
    ({"optimizer": 0.1}, "optimizer is 0.1; pass a function"),
    ({"optimizer": lambda model: torch.optim.SGD(model.parameters())}, "rows is a list of parameters: .*lambda"),
    ({"optimizer": lambda rows: LR}, "steps parameters that are not the rows, which would stay as they are; .*lambda"),
    ({"optimizer": lambda rows: None}, r"optimizer\(rows\) returned None, not an optimizer; .*lambda"),
    ({"scheduler": torch.optim.lr_scheduler.StepLR(LR, 1)}, "scheduler is .*StepLR; pass a function that makes it"),
    ({"scheduler": lambda optimizer: None}, r"scheduler\(optimizer\) returned None; return a scheduler"),
    ({"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau}, "waits for a measured loss.*; use .*CosineAnnealingLR"),
    ({"clip": "a"}, "clip = 'a'; the largest norm of a gradient is a number above 0"),
    ({"task": nn.Linear(2, 2)}, "task is an object of type Linear; make a task, such as"),
    ({"task": mw.tasks.ModuleTask}, "task is the class ModuleTask; make a task"),
    ({"task": mw.tasks.ModuleTask(nn.Linear(6, 3), DATA, PARTS)}, "no test set"),  # not after the last step
)
def test_an_argument_of_another_kind_is_explained(options, says):
    refused(mw.MixwiseError, says, last, **options)


@cases(
    "arguments, says",
    ((nn.Linear, DATA, PARTS), "module is the class Linear, .*missing.*; pass a function: module=lambda"),
    (("mlp", DATA, PARTS), "module is 'mlp'; pass an nn.Module or a function"),
    ((lambda: None, DATA, PARTS), r"module\(\) returned None"),
    ((nn.Linear(6, 3), (X, Y), PARTS), r"data is an object of type tuple; pass mixwise.data.Dataset\(x, y, classes\)"),
    ((nn.Linear(6, 3), torch.utils.data.TensorDataset(X, Y), PARTS), r"mixwise.data.from_torch\(data\)"),
    ((nn.Linear(6, 3), DATA, "iid"), "partition is 'iid'; pass a partition"),
    ((nn.Linear(6, 3), DATA, np.arange(24) % 4), "partition is an object of type ndarray"),
)
def test_an_argument_of_a_module_task_of_another_kind_is_explained(arguments, says):
    refused(mw.MixwiseError, says, mw.tasks.ModuleTask, *arguments)


@pytest.mark.parametrize("wrap", [nn.Parameter, nn.Buffer])
def test_the_imaginary_part_of_a_module_is_not_dropped(wrap):
    module = nn.Linear(6, 3)
    module.phase = wrap(torch.ones(2, dtype=torch.complex64))
    for made in module, lambda: module:
        refused(mw.MixwiseError, "'phase' .* torch.complex64, but rows are real; .*view_as_real", trained, made)


def test_a_module_is_taken_as_its_own_factory_and_not_changed():
    module = nn.Linear(6, 3)
    before = module.weight.clone()
    assert trained(module).values == trained(lambda: module).values
    assert torch.equal(module.weight, before)


@pytest.mark.parametrize("gradients", ["loop", "stacked"])
@cases(
    "module, says",
    (
        nn.Linear(6, 2),
        r"returns \(6, 2\) for a batch of 6; .*labels 0 to 2 needs \(6, 3\): .*3 outputs",
    ),
    (nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)), r"returns \(6,\)"),
    (nn.Linear(5, 3), r"cannot take a batch of shape \(6, 6\): "),
)
def test_outputs_that_do_not_fit_the_labels_are_explained(module, says, gradients):
    refused(mw.MixwiseError, says, trained, module, gradients=gradients)


def test_a_loss_is_an_object():
    refused(mw.MixwiseError, r"make one: CrossEntropyLoss\(\)", trained, nn.Linear(6, 3), loss=nn.CrossEntropyLoss)


CROSS_ENTROPY = nn.functional.cross_entropy


@pytest.mark.parametrize("gradients", ["loop", "stacked"])
@cases(
    "loss, says",
    ("mse", "loss is 'mse'; pass a function of outputs and targets"),
    (nn.CrossEntropyLoss(reduction="none"), r"the loss returns shape \(6,\); return its mean over the batch"),
    (lambda outputs, y: CROSS_ENTROPY(outputs, y, reduction="none"), r"the loss returns shape \(6,\); return its mean"),
    (lambda outputs, y: 1.0, r"the loss returns 1.0; return its mean over the batch"),
    (lambda outputs, y: CROSS_ENTROPY(outputs.detach(), y), "the loss does not depend on the parameters"),
    (lambda y, outputs: CROSS_ENTROPY(outputs, y), r"cannot take outputs \(6, 3\) and targets \(6,\) of torch.int64: "),
)
def test_a_loss_that_gives_no_mean_over_the_batch_is_explained(loss, says, gradients):
    refused(mw.MixwiseError, says, trained, nn.Linear(6, 3), loss=loss, gradients=gradients)


def test_metrics_have_names_of_their_own():
    refused(mw.MixwiseError, "another number named 'loss'; choose a name such as test_loss", trained, nn.Linear(6, 3),
            metrics={"loss": CROSS_ENTROPY})  # fmt: skip
    refused(mw.MixwiseError, "metrics is an object of type list; pass functions by name", trained, nn.Linear(6, 3),
            metrics=[CROSS_ENTROPY])  # fmt: skip


@pytest.mark.parametrize("batch", [0, -1, 8.5, "8"])
def test_a_batch_is_a_whole_number(batch):
    says = f"batch = {batch!r}; give a whole number of at least 1"
    refused(mw.MixwiseError, says, mw.tasks.ModuleTask, nn.Linear(6, 3), DATA, PARTS, batch=batch)


def test_a_run_is_evaluated_once_unless_asked():
    task = mw.tasks.ModuleTask(nn.Linear(6, 3), DATA, PARTS, batch=6, test=DATA)
    assert ["accuracy" in r.values for r in mw.train(task, "ring:4", optimizer=sgd(), steps=3)] == [False, False, True]


def test_gossip_explains_models_and_optimizers_of_another_kind():
    model, graph = nn.Linear(6, 3), mw.Graph(1, [])
    refused(mw.MixwiseError, "model is the class Linear; pass the nn.Module", mw.Gossip, nn.Linear, LR, graph)
    refused(mw.MixwiseError, "optimizer is the class SGD; pass", mw.Gossip, model, torch.optim.SGD, graph)
    refused(mw.MixwiseError, "model is an object of type SGD", mw.Gossip, LR, model, graph)
