"""The recipes of the paper's four tables have the settings of its appendix."""

import pytest
import torch

from mixwise.experiments import load_recipe, plan_experiment
from mixwise.experiments.build import build_scheduler
from mixwise.graphs import parse

CIFAR10, IMAGENET = 50_000, 1_281_167  # images for training
RINGS_AND_TORUS = {"ring": "ring:16", "torus": "torus:4x4"}
PAPERS = {"kind": "heterogeneity-aware", "alternate_with": "metropolis-hastings"}


def runs_of(name):
    """The recipe with its runs; what the paper says of all its experiments is checked."""
    experiment = plan_experiment(load_recipe(name))
    assert len(experiment.recipe.seeds) == 3
    for config in experiment.runs.values():
        assert (config.task["partition"], config.task["batch"]) == ({"kind": "dirichlet", "alpha": 0.1}, 32)
        assert config.local_steps == 1
    return experiment.recipe, experiment.runs


def run_length(config, samples):
    return round(config.epochs * samples / (32 * parse(config.graph).n))


def learning_rates(config, samples, epochs):
    """The learning rate after so many epochs."""
    steps = run_length(config, samples)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=config.optimizer.lr)
    (factor,) = build_scheduler(config.schedule, steps)(optimizer).lr_lambdas
    return [config.optimizer.lr * factor(round(epoch * steps / config.epochs)) for epoch in epochs]


def is_nesterov(optimizer):
    return (optimizer.kind, optimizer.momentum, optimizer.nesterov, optimizer.weight_decay) == ("sgd", 0.9, True, 1e-4)


def settings_of_resnet_on_cifar10(config):
    """Appendix D, Table 5: warm-up over 5 epochs from 0, then 0.1, divided by 10 at epochs 150 and 180 of 300."""
    assert (config.epochs, config.task["augment"], config.optimizer.lr) == (300, True, 0.1)
    assert config.task["data"] == {"kind": "cifar10"}
    assert config.task["model"] == {"kind": "resnet20", "options": {"norm": "evonorm"}}
    assert config.optimizer.weight_decay == 1e-4
    rates = learning_rates(config, CIFAR10, (0, 2.5, 5.1, 149, 151, 179, 181, 299))
    assert rates == pytest.approx([0, 0.05, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001], abs=1e-3)
    assert run_length(config, CIFAR10) // config.evaluate_every >= 14  # enough for a curve, on 32 nodes as well


def test_table_1():
    recipe, runs = runs_of("cifar10")
    assert recipe.topologies == RINGS_AND_TORUS | {"social": "social"}
    for config in runs.values():
        settings_of_resnet_on_cifar10(config)
    for topology in recipe.topologies:
        of = {name.removeprefix(f"{topology}/"): run for name, run in runs.items() if name.startswith(f"{topology}/")}
        plain = {name for name, run in of.items() if not is_nesterov(run.optimizer)}
        assert plain == {"dsgd", "ha-dsgd"}
        assert all(of[name].optimizer.momentum == 0 for name in plain)
        for name in ("ha-dsgd", "ha-dsgd-momentum"):
            assert of[name].policy == PAPERS | {"period": 100, "sketch": {"kind": "gaussian", "dim": 100}}
        for name in ("dsgd", "dsgd-momentum-metropolis"):
            assert of[name].policy == "metropolis-hastings"
        assert of["dsgd-momentum-optimal-gap"].policy == "optimal-gap"
        assert of["d2"].algorithm == "d2"


def test_table_2():
    _, runs = runs_of("compression")
    for dim in (1, 100, 1000):
        config = runs[f"k-{dim}"]
        settings_of_resnet_on_cifar10(config)
        assert is_nesterov(config.optimizer)
        assert config.policy == PAPERS | {"period": 100, "sketch": {"kind": "gaussian", "dim": dim}}


def test_table_3():
    recipe, runs = runs_of("agnews")
    assert recipe.topologies == RINGS_AND_TORUS
    for name, config in runs.items():
        adam, task = config.optimizer, config.task
        assert (adam.kind, adam.betas, adam.eps, adam.weight_decay) == ("adam", (0.9, 0.999), 1e-8, 0)
        assert (config.epochs, task.get("augment", False), config.algorithm) == (10, False, "dadam")
        assert (task["data"]["kind"], task["model"]["options"]["name"]) == ("ag-news", "distilbert-base-uncased")
        assert (adam.lr, build_scheduler(config.schedule, 1000)) == (1e-6, None)  # constant, without warm-up
        papers = PAPERS | {"period": 100, "sketch": {"kind": "count", "dim": 100}}
        assert config.policy == (papers if name.endswith("ha-dadam") else "metropolis-hastings")


def test_table_4():
    _, runs = runs_of("imagenet")
    for config in runs.values():
        assert is_nesterov(config.optimizer)
        assert (config.epochs, config.graph, config.task["augment"]) == (90, "ring:16", True)
        assert config.task["data"]["options"]["size"] == 224
        assert config.task["model"] == {"kind": "resnet18", "options": {"norm": "evonorm"}}
        rates = learning_rates(config, IMAGENET, (0, 2.5, 5.01, 29, 31, 59, 61, 81, 89))
        assert config.optimizer.lr == pytest.approx(0.1 * 32 * 16 / 256)
        assert rates == pytest.approx([0.1, 0.15, 0.2, 0.2, 0.02, 0.02, 0.002, 0.0002, 0.0002], rel=1e-3)
    assert runs["ha-dsgd-momentum"].policy["period"] == 1000
