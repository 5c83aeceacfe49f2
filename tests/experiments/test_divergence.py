"""A run that diverges is recorded, ranked last and left out of averages; the other runs go on."""

import json
import math

import pytest

import mixwise as mw
from builders import refused, sgd
from mixwise.errors import DivergedError, TrainingError
from mixwise.experiments import Recipe, load_run, run_experiment
from mixwise.experiments.sweep import sweep
from mixwise.network import SimulatedNetwork
from mixwise.report.folder import read_folder
from mixwise.report.narrative import narrative
from mixwise.report.page import page_data
from mixwise.report.summary import summarize
from mixwise.report.table import tabulate
from run_folders import counted_steps, made_folder, planned, small_recipe

pytestmark = pytest.mark.usefixtures("no_pictures")
BASE = {"steps": 40, "graph": "ring:4", "policy": "metropolis-hastings", "optimizer": {"lr": 0.001}}
HIGH = {"optimizer": {"lr": 1e6}}


def diverging(*overrides, **variants):
    return planned(variants, *overrides, metrics=["loss"], seeds=(0, 1), **BASE)


# --- runs ---
def test_the_others_run_and_the_folder_says_which_run_diverged_and_where(tmp_path):
    seen = []
    summary = run_experiment(diverging(high=HIGH, low={}), tmp_path / "run", seen.append)
    assert [row.variant for row in summary.table.ranked()] == ["low"]
    assert summary.rows["low"].diverged == {}
    for seed in (0, 1):
        found = json.loads((tmp_path / "run" / "high" / f"seed-{seed}" / "diverged.json").read_text())
        assert (found["learning_rate"], found["node"] in range(4), 0 < found["step"] < 40) == (1e6, True, True)
        assert found["message"].startswith(f"step {found['step']}: ")
        lines = (tmp_path / "run" / "high" / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(found["step"]))
    told = [progress for progress in seen if progress.divergence is not None]
    assert [(progress.variant, progress.seed) for progress in told] == [("high", 0), ("high", 1)]
    assert load_run(tmp_path / "run").missing == ()
    with counted_steps() as taken:
        again = run_experiment(diverging(high=HIGH, low={}), tmp_path / "run", resume=True)
    taken.assert_not_called()
    assert str(again) == str(summary)


def test_a_schedule_does_not_hide_the_learning_rate_that_was_set(tmp_path):
    warm = HIGH | {"schedule": {"warmup": 0.9}}
    (row,) = run_experiment(diverging(warm=warm), tmp_path / "run").rows.values()
    assert row.diverged[0].learning_rate == 1e6


def test_compare_continues(tmp_path):
    methods = {"high": {"policy": "pairs", "optimizer": sgd(1e9)}, "low": "pairs", "higher": {"optimizer": sgd(1e300)}}
    options = {"steps": 30, "optimizer": sgd(0.005), "progress": False, "out": tmp_path / "mine"}
    run = mw.compare(lambda seed: mw.tasks.random_quadratics(4, seed=seed), "ring:4", methods, **options)
    assert [row.variant for row in run.summary.table.ranked()] == ["low"]
    assert {name for name, row in run.summary.rows.items() if row.diverged} == {"high", "higher"}
    assert "high: diverged (seed 0 in step" in str(run)


def test_a_sweep_chooses_among_what_did_not_diverge(tmp_path):
    whole = small_recipe({"a": {}, "b": {}}, **BASE, seeds=(0,), metrics=["accuracy"])
    whole["base"] |= {"task": {"kind": "classification", "data": {"kind": "gaussian-mixture", "options": {
        "classes": 3, "dim": 4, "samples": 60}, "validation": 0.2}, "model": {"kind": "mlp", "options": {
        "sizes": [4, 3]}}, "partition": {"kind": "iid"}, "batch": 4}, "steps": 4}  # fmt: skip
    grid = ["lr=0.01,1e30", "optimizer.weight_decay=1", "b.optimizer.weight_decay=1e30"]
    result = sweep(Recipe.model_validate(whole), grid, tmp_path / "swept")
    assert result.chosen == {"a": "optimizer.lr=0.01"}
    assert list(result.summary.rows) == ["a"]
    refused(TrainingError, "every run of the grid has diverged", sweep, Recipe.model_validate(whole),
            [*grid, "variants=b"], tmp_path / "none")  # fmt: skip


# --- the cause ---
def test_where_all_nodes_are_simulated_no_node_is_blamed():
    """A row too long for its neighbors comes from a step that was too long."""
    graph = mw.graphs.ring(4)
    task = mw.tasks.random_quadratics(4)
    with pytest.raises(DivergedError, match="lower the learning rate") as error:
        mw.train(task, graph, "metropolis-hastings", optimizer=sgd(1e5), steps=1000).records  # noqa: B018
    assert "that node" not in str(error.value)
    X = task.initial(range(4)).float()
    X[2] *= 1e20 if X[2].any() else 1.0
    X[2] += 1e20
    W = mw.mixing.metropolis_hastings(graph)
    refused(
        DivergedError,
        r"node 2 sent node \d .*; lower the learning rate \(lr\), or continue",
        SimulatedNetwork(graph).mix,
        X,
        W,
    )


def test_a_hostile_node_is_no_divergence():
    faults = mw.network.Faults(corrupt={"nan": [1]})
    options = {"optimizer": sgd(0.001), "steps": 3, "faults": faults}
    with pytest.raises(TrainingError, match=r"node 1 sent node .* fix that node") as error:
        mw.train(mw.tasks.random_quadratics(4), "ring:4", "metropolis-hastings", **options).records  # noqa: B018
    assert not isinstance(error.value, DivergedError)


# --- tables ---
def folder_with(path, **losses):
    """Runs that end at these losses, seed by seed; NaN stands for one that has diverged at loss 0."""
    runs = {
        name: [[{"step": t, "loss": 0.0 if math.isnan(loss) else loss} for t in range(3)] for loss in seeds]
        for name, seeds in losses.items()
    }
    made_folder(path, runs)
    for name, seeds in losses.items():
        for seed, loss in enumerate(seeds):
            if math.isnan(loss):
                found = {"step": 3, "node": 2, "learning_rate": 10.0, "message": "step 3: …"}
                (path / name / f"seed-{seed}" / "diverged.json").write_text(json.dumps(found))
    return read_folder(path)


NAN = math.nan


def test_a_method_with_diverged_seeds_ranks_behind_all_that_have_fewer(tmp_path):
    table = tabulate(folder_with(tmp_path, lost=[NAN] * 3, most=[NAN, NAN, 1.0], one=[2.0, NAN, 4.0], none=[8.0] * 3))
    assert [row.variant for row in table.ranked()] == ["none", "one", "most"]
    assert [row.variant for row in table.rows.values() if table.is_best(row, 0)] == ["none"]
    assert table.rows["one"].cells[0].mean == 3.0  # the record of the diverged seed, a loss of 0, is no part of it
    assert table.seeds == (0, 1, 2)


def test_tables_say_how_many_seeds_diverged(tmp_path):
    folder = folder_with(tmp_path, lost=[NAN] * 3, one=[2.0, NAN, 4.0], none=[8.0] * 3)
    summary, table = summarize(folder), tabulate(folder)
    for text in (str(summary), summary.to_markdown("t"), summary._repr_html_()):
        assert "lost (all 3 seeds diverged)" in text
        assert "one (1 of 3 seeds diverged)" in text
        assert "one: 1 of 3 seeds diverged (seed 1 in step 3 at node 2; learning rate 10)" in text
    assert "| lost (all 3 seeds diverged) | diverged |" in summary.to_markdown("t")
    assert table.differences()["one"].endswith("better on 2 of 2 seeds (1 diverged)")
    assert [line.rpartition(",")[2] for line in summary.to_csv().splitlines()] == ["diverged", "3", "1", "0"]
    story = "".join(text for text, _ in narrative(folder, table))
    assert "none did best" in story
    assert "one reached 3.00 ± 1.41 on the seeds on which it did not diverge" in story.replace(
        "\N{NO-BREAK SPACE}", " "
    )
    assert "one diverged on 1 of 3 seeds." in story


def test_the_page_draws_the_curves_that_the_table_averages(tmp_path):
    data = page_data([folder_with(tmp_path, one=[2.0, NAN, 4.0], none=[8.0] * 3)])
    drawn = {(run["variant"], run["seed"]) for run in data["runs"] if run["groups"]}
    assert drawn == {(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)}
    assert [row["diverged"] for row in data["experiments"][0]["rows"]] == ["1 of 3 seeds diverged", None]
