"""Recipes: those of mixwise, their variants and overrides, and values and names that are refused."""

import inspect
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from torch.optim import SGD

from builders import cases, refused
from every_algorithm import algorithm
from mixwise import algorithms
from mixwise.errors import ConfigError
from mixwise.experiments import Recipe, load_recipe, plan_experiment, recipe_names, run_experiment
from mixwise.experiments.build import build_scheduler, prepare
from mixwise.experiments.config import validated
from mixwise.experiments.recipe import Experiment
from mixwise.parts import entries
from mixwise.policies import Pairs


def small(**changes):
    base = {"steps": 3, "graph": "ring:4", "task": {"noise": 0.5}, "optimizer": {"lr": 0.01}}
    base |= {"policy": "metropolis-hastings"}
    variants = {"one": {}, "two": {"policy": {"kind": "heterogeneity-aware", "period": 2}}}
    recipe = {"name": "small", "seeds": [0], "metrics": ["loss"], "base": base, "variants": variants}
    return validated(Recipe, {**recipe, **changes}, "recipe small")


# --- the recipes of mixwise ---
@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_of_mixwise_can_be_planned(name):
    experiment = plan_experiment(load_recipe(name))
    assert experiment.recipe.description
    assert len(experiment.runs) >= 2


@pytest.mark.parametrize("name", ["digits", "permutations-four", "permutations-ring", "quadratics"])
def test_every_recipe_that_needs_no_download_runs(name):
    experiment = plan_experiment(load_recipe(name), ["steps=1"])
    for config in experiment.runs.values():
        assert next(prepare(config, experiment.recipe.seeds[0])()).step == 0


@pytest.mark.parametrize("name", list(entries("algorithm")))
def test_the_source_of_an_algorithm_cites_what_its_declaration_cites(name):
    work = re.compile(r"\w+ (?:et al\.|and \w+) \d{4}")
    kind = type(algorithm(name))
    declared = set(work.findall(entries("algorithm")[name]["cite"]))
    assert set(work.findall(kind.__doc__)) <= declared
    assert declared <= set(work.findall(f"{inspect.getmodule(kind).__doc__} {kind.__doc__}"))


def test_every_algorithm_class_is_built_by_a_variant_of_cifar10_small():
    recipe = load_recipe("cifar10-small")
    names = ",".join([*recipe.variants, *recipe.further])
    runs = plan_experiment(recipe, [f"variants={names}", "topology=ring"]).runs
    built = {type(config.part("algorithm")) for config in runs.values()}
    public = {getattr(algorithms, name) for name in algorithms.__all__}
    assert built == {part for part in public if issubclass(part, algorithms.Algorithm)} - {algorithms.Algorithm}


def test_table_1_in_20_epochs_has_the_settings_of_the_paper_and_its_schedule_scaled():
    """Each variant is one of `cifar10` on the ring, or differs from it in what its name says."""
    whole = plan_experiment(load_recipe("cifar10"), ["topology=ring"]).runs
    recipe = load_recipe("cifar10-table1")
    runs = plan_experiment(recipe, [f"variants={','.join([*recipe.variants, *recipe.further])}"]).runs
    aware = whole["ha-dsgd-momentum"].part("policy")
    expected = {"mh": whole["dsgd-momentum-metropolis"].part("policy"), "ha-dsgd": aware, "pairs": Pairs()}
    expected |= {f"ha-dsgd-{control}": replace(aware, control=control) for control in ("permuted", "predicted")}
    expected["ha-parameters"] = replace(aware, objective="parameters")
    expected["ha-parameters-permuted"] = replace(aware, objective="parameters", control="permuted")
    assert {name: run.part("policy") for name, run in runs.items()} == expected
    assert list(recipe.variants) == ["mh", "ha-dsgd", "ha-dsgd-permuted", "ha-parameters", "pairs"]
    for run in runs.values():
        paper = whole["dsgd-momentum-metropolis"]
        task = {name: value for name, value in run.task.items() if name not in ("interim_samples", "compile")}
        length = ("epochs", "record_every", "evaluate_every", "checkpoint_every", "policy")
        same = {name: getattr(paper, name) for name in length} | {"task": task}
        assert run.model_copy(update=same) == paper
    steps = round(20 * 50_000 / (16 * 32))
    rate = [build_scheduler(run.schedule, steps)(SGD([torch.zeros(1)], lr=1)).lr_lambdas[0](t) for t in range(steps)]
    epochs = np.array([0, 2.5, 5.01, 149, 151, 179, 181, 299]) / 15  # of 300
    assert [rate[round(epoch * steps / 20)] for epoch in epochs] == pytest.approx(
        [0, 0.5, 1, 1, 0.1, 0.1, 0.01, 0.01], rel=0.05
    )
    assert (run.evaluate_every * 10 < steps < run.evaluate_every * 11, run.graph) == (True, "ring:16")


# --- variants and overrides ---
def test_nodes_is_the_size_of_any_graph():
    runs = plan_experiment(load_recipe("large"), ["nodes=100000", "full-averaging.graph=ring:3"]).runs
    assert {config.graph for config in runs.values()} == {"torus:250x400", "ring:100000"}
    for wrong in ("nodes=0", "nodes=many", "nodes=true", "nodes=2.5"):
        refused(ConfigError, "give a whole number of at least 1", plan_experiment, load_recipe("large"), [wrong])


def test_variants_merge_with_the_base_and_parts_with_a_kind_replace_it():
    recipe = small(variants={"one": {"task": {"dim": 3}}, "two": {"task": {"kind": "quadratics"}}})
    runs = plan_experiment(recipe).runs
    assert runs["one"].task == {"dim": 3, "noise": 0.5}
    assert runs["two"].task == {"kind": "quadratics"}  # the base's task was replaced


def test_overrides_reach_all_variants_or_the_one_that_is_named():
    recipe, before = small(), small().model_dump()
    runs = plan_experiment(recipe, ["steps=7", "two.policy.period=5", "two.task.noise=0", "lr=0.25/L", "two.lr=1"]).runs
    assert [run.optimizer.lr for run in runs.values()] == ["0.25/L", 1.0]  # short for optimizer.lr
    assert recipe.model_dump() == before
    assert [config.steps for config in runs.values()] == [7, 7]
    assert runs["two"].policy == {"kind": "heterogeneity-aware", "period": 5}
    assert (runs["one"].task, runs["two"].task) == ({"noise": 0.5}, {"noise": 0})
    digits = plan_experiment(load_recipe("digits"), ["variants=pairs", "pairs.policy.rounds=8"]).runs["pairs"]
    assert digits.policy == {"kind": "pairs", "rounds": 8}  # in the recipe, its name alone


@pytest.mark.parametrize(
    "changes", [*itertools.permutations(["task.partition.kind=dirichlet", "task.partition.alpha=1"])]
)
def test_another_kind_drops_the_options_of_the_former_one(changes):
    run = plan_experiment(load_recipe("digits"), ["variants=pairs", *changes]).runs["pairs"]
    assert run.task["partition"] == {"kind": "dirichlet", "alpha": 1}  # in the recipe: by-label with labels_per_node


def test_overrides_choose_variants_and_seeds():
    experiment = plan_experiment(small(), ["variants=two", "seeds=1,3-5", "window=2"])
    assert list(experiment.runs) == ["two"]
    assert (experiment.recipe.seeds, experiment.recipe.window) == ([1, 3, 4, 5], 2)


def test_the_yaml_of_an_experiment_is_a_recipe_that_gives_it_again():
    experiment = plan_experiment(load_recipe("permutations-four"), ["steps=5", "seeds=0-1"])
    again = plan_experiment(Recipe.model_validate(yaml.safe_load(experiment.to_yaml())))
    assert again.runs == experiment.runs
    assert again.recipe.seeds == experiment.recipe.seeds


def test_topologies_give_one_run_each_and_can_be_chosen():
    recipe = small(topologies={"ring": "ring:4", "star": "star:4"})
    both = plan_experiment(recipe, ["two.policy.period=7"])
    assert list(both.runs) == ["ring/one", "ring/two", "star/one", "star/two"]
    assert [both.runs[name].graph for name in ("ring/one", "star/two")] == ["ring:4", "star:4"]
    assert both.runs["star/two"].policy["period"] == 7
    assert list(plan_experiment(recipe, ["topology=star"]).runs) == ["one", "two"]
    again = plan_experiment(Recipe.model_validate(yaml.safe_load(both.to_yaml())))
    assert again.runs == both.runs
    refused(ConfigError, "unknown topology 'torus'", plan_experiment, recipe, ["topology=torus"])


def test_distinct_placements_of_a_chain_of_four_are_its_twelve_labelings_and_need_one_graph():
    recipe = small(placements="distinct", base={**small().base, "graph": "chain:4"}, variants={"one": {}})
    runs = plan_experiment(recipe).runs
    assert len(runs) == 12  # 4! orders, each chain read from both ends
    assert next(iter(runs)) == "one@0123"
    assert next(iter(runs.values())).placement == [0, 1, 2, 3]
    base = {**small().base, "graph": "random-connected:5"}
    refused(ConfigError, "seed=0", plan_experiment, small(placements="distinct", base=base, seeds=[0, 1, 2, 3]))


@cases(
    "override, says",
    ("stepz=3", "did you mean steps"),
    ("steps=0", "steps = 0.*greater than or equal to 1"),
    ("steps=2.5", "steps = 2.5: input should be a valid integer"),
    ("two.policy.perod=3", "policy: unknown key 'perod'; did you mean period"),
    ("two.policy.sketch.kind=magic", "policy.sketch: unknown sketch 'magic'; allowed: count, exact, gaussian"),
    ("policy=fastest", "metropolis-hastings"),
    ("two.policy=[1]", r"policy = \[1\]: a policy is written as its name, or as {kind: NAME, option: …}"),
    ("policy.period=3", "variant one.*VARIANT.policy.period=3"),
    ("three.steps=1", "three.steps: unknown key 'three'"),
    ("two.stepz=1", "two.stepz: unknown key 'stepz'; did you mean steps"),
    ("variants=three", "unknown variant 'three'.*one, two"),
    ("seeds=x", "0-9"),
    ("seeds=3-1", "the lower number first"),
    ("seeds=1,1", "twice"),
    ("optimizer.lr=0", "positive"),
    ("optimizer.lr=0.3/K", "0.3/L"),
    ("optimizer.betas=[1.5, 0.9]", "optimizer.betas.* less than 1"),  # torch would refuse it later
    ("optimizer.eps=.inf", "finite"),
    ("epochs=.inf", "finite"),
    ("steps", "key=value"),
    ("steps=[", "not valid YAML"),
    ("placement=upside-down", "'given', 'random' or 'gme'"),
)
def test_a_wrong_override_is_one_line_that_says_what_is_allowed(override, says):
    refused(ConfigError, says, plan_experiment, small(), [override])


# --- names become folders ---
@pytest.mark.parametrize(
    "name", ["../other", "..", ".", "", "/tmp/other", "a\\b", "a\n", "-a", "a b", "é", "x" * 101, "~"]
)
@pytest.mark.parametrize("key", ["name", "topologies", "variants", "further"])
def test_a_name_that_is_no_folder_inside_of_the_run_is_refused(name, key, tmp_path):
    named = name if key == "name" else {name: "ring:4" if key == "topologies" else {}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**small().model_dump(), key: named}))
    says = rf"{re.escape(repr(name))} names a folder: at most 100 letters.*rename it"
    refused(ConfigError, says, load_recipe, str(tmp_path / "recipe.yaml"))


@pytest.mark.parametrize("name", ["ring/../../other", "ring//one", "/one", "ring/"])
def test_the_config_of_a_run_folder_cannot_lead_out_of_it_either(name):
    refused(ConfigError, "rename it", small, variants={name: {}})
    refused(ConfigError, "rename it", Experiment, small(), {name: plan_experiment(small()).runs["one"]})


def test_a_variant_with_a_dot_could_not_be_named_in_an_override():
    refused(ConfigError, r"'a\.b' has a dot", small, variants={"a.b": {}})
    refused(ConfigError, r"'a=b' has an =", small, variants={"a=b": {}})
    assert "torus.v2/one" in small(variants={"torus.v2/one": {}}).variants


@cases(
    "content, says",
    (b"name: [\n", r"broken\.yaml, line \d+: not valid YAML"),
    (b"name: x\nseeds: [0]\nmetrics: [loss]\nvariant: {}\n", "unknown key 'variant'.*did you mean variants"),
    (b"just words", r"broken\.yaml"),
    (b"\xff\xfe\x00", r"broken\.yaml"),
    (None, "No such file"),
)
def test_a_file_that_is_no_recipe_is_refused(content, says, tmp_path):
    if content is not None:
        (tmp_path / "broken.yaml").write_bytes(content)
    refused(ConfigError, says, load_recipe, str(tmp_path / "broken.yaml"))


@cases(
    "changes, says",
    ({"graph": "ring:5", "task": {"classes": "two"}}, "even"),
    ({"placement": [0, 0, 1, 2]}, "permutation"),
    ({"algorithm": "decoupled"}, "fit together"),
    ({"policy": {"kind": "decoupled", "params": "uniform", "updates": "uniform"}}, "fit together"),
    ({"policy": {"kind": "fixed", "weights": {"cliques": [[0, 2]]}}}, "not an edge"),
    ({"graph": "star:4", "policy": "uniform"}, "regular"),
)
def test_a_configuration_that_cannot_run_is_refused_before_the_first_step(changes, says):
    config = plan_experiment(small(variants={"one": changes})).runs["one"]
    refused(ValueError, says, prepare, config, seed=0)


def test_files_of_a_run_are_found_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "g.txt").write_text("0 1\n1 2\n2 3\n")
    monkeypatch.chdir(tmp_path)
    experiment = plan_experiment(small(), ["graph=file:g.txt", "data_dir=data"])
    (tmp_path / "config.yaml").write_text(experiment.to_yaml())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = plan_experiment(load_recipe("../config.yaml"))
    assert again.written_in(tmp_path / "config.yaml")
    assert experiment.written_in(tmp_path / "config.yaml")
    assert again.runs["one"].data_dir == str(tmp_path / "data")
    assert prepare(again.runs["one"], seed=0).nodes == 4


def test_a_metric_that_no_record_will_hold_is_refused_before_a_folder_is_made(tmp_path):
    experiment = plan_experiment(small(metrics=["distance_to_optimun"]))
    refused(ConfigError, "did you mean distance_to_optimum", run_experiment, experiment, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    holds = prepare(plan_experiment(small()).runs["one"], seed=0)
    assert {*holds.metrics} >= {name for record in holds() for name, v in record.values.items() if type(v) is float}
