"""Everything that compares does so within a topology: others have other graphs, and their nodes hold other data."""

import pytest

from builders import cases, refused
from mixwise.errors import ConfigError
from mixwise.report.figures import curves_figure, save_paper_figures
from mixwise.report.folder import read_folder
from mixwise.report.narrative import narrative
from mixwise.report.page import page_data
from mixwise.report.summary import summarize
from run_folders import made_folder

# Accuracies by topology, method and seed. On 32 nodes everything is easier, and nothing there is plain gossip.
ENDS = {
    "ring/plain": [0.50, 0.52],
    "ring/aware": [0.55, 0.58],
    "ring/all": [0.60, 0.60],
    "social/pairs": [0.80, 0.70],
    "social/aware": [0.90, 0.91],
    "social/all": [0.95, 0.95],
}


def records(end, steps):
    return [{"step": t, "accuracy": end * (t + 1) / steps, "loss": 1 / (t + 1)} for t in range(steps)]


def scene(variant):
    topology, _, method = variant.partition("/")
    n = {"ring": 16, "social": 32}[topology]
    kinds = {"algorithm_kind": "dsgd", "policy_kind": "metropolis-hastings" if method == "plain" else method}
    labels = {"counts": [[1, 2]] * n, "classes": ["a", "b"], "data": "toy"}
    edges = [[i, (i + 1) % n] for i in range(n)]
    return {
        "n": n,
        "edges": edges,
        "graph": f"{topology}:{n}",
        "steps": 10,
        "reference": method == "all",
        **kinds,
        **labels,
    }


@pytest.fixture
def folder(tmp_path):
    return written(tmp_path / "run")


def written(path, steps=10):
    runs = {variant: [records(end, steps) for end in ends] for variant, ends in ENDS.items()}
    made_folder(path, runs, {variant: scene(variant) for variant in runs}, metrics=["accuracy"])
    return read_folder(path)


def test_each_topology_has_its_own_baseline_best_and_reference(folder):
    ring, social = summarize(folder).tables
    assert (ring.topology, ring.baseline.variant, social.topology, social.baseline.variant) == (
        "ring", "ring/plain", "social", "social/aware",
    )  # fmt: skip
    for table, best in ((ring, "ring/aware"), (social, "social/aware")):
        assert [row.variant for row in table.rows.values() if table.is_best(row, 0)] == [best]
        assert [row.reference for row in table.shown] == [False, False, True]
    assert ring.differences().keys() == {"ring/aware", "ring/all"}
    assert social.differences().keys() == {"social/pairs", "social/all"}


def test_text_markdown_and_html_mark_the_best_of_each_topology(folder):
    summary = summarize(folder)
    assert [line.split()[1][0] == "*" for line in str(summary).splitlines() if "/aware  " in line] == [True, True]
    markdown = summary.to_markdown("t")
    assert [line for line in markdown.splitlines() if line.startswith("## ")] == ["## ring", "## social"]
    assert markdown.count("**") == 4
    assert "difference from ring/plain paired" in markdown
    assert "difference from social/aware paired" in markdown
    assert summary._repr_html_().count("<b>") == 2
    assert summary.to_csv().splitlines()[1].startswith("ring,plain,0.51,")


def test_variants_of_different_topologies_cannot_be_compared(folder):
    summary = summarize(folder)
    assert summary.difference("ring/aware", "ring/plain").wins == 2
    refused(ConfigError, "different topologies", summary.difference, "ring/aware", "social/aware")
    refused(ConfigError, "unknown variant 'aware'", summary.difference, "aware", "ring/plain")
    refused(ConfigError, "several topologies, ring, social", lambda: summary.table)


def test_the_story_and_the_tile_above_it_are_about_the_same_graph(folder):
    experiments = page_data([folder])["experiments"]
    assert [each["name"] for each in experiments] == ["ring", "social"]
    for each, name, n in zip(experiments, ("ring", "social"), ("16", "32"), strict=True):
        story = "".join(text for text, _ in each["story"])
        assert story.startswith(f"{name}/aware did best")
        assert ({"ring": "social", "social": "ring"}[name] + "/") not in story
        assert (f"nodes on {name}:{n}", n) in each["figures"]
        assert [row["short"] for row in each["rows"]][1:] == ["aware", "all"]
        assert [row["rank"] for row in each["rows"]] == [2, 1, 0]
        assert [row["cells"][0]["best"] for row in each["rows"]] == [False, True, False]
        assert each["separate"]
    assert [row["control"] for row in experiments[1]["rows"]] == [None, None, None]  # the plain one is on the ring


def test_narratives_of_whole_folders_are_those_of_their_topologies(folder):
    ring, social = folder.by_topology()
    (table,) = summarize(social).tables
    assert "social/all averages over all nodes" in "".join(text for text, _ in narrative(social, table))
    assert [run.variant.partition("/")[0] for run in ring.runs] == ["ring"] * 6


def test_problems_stand_with_their_topology(folder):
    folder.problems = ["not started: x", "social/aware, seed 1: 3 of 10 steps", "ring/all, seed 0: no records"]
    ring, social = folder.by_topology()
    assert ring.problems == ["not started: x", "ring/all, seed 0: no records"]
    assert social.problems == ["social/aware, seed 1: 3 of 10 steps"]


def test_figures_do_not_mix_topologies(folder):
    figure = curves_figure(folder, ["accuracy", "loss"])
    assert len(figure.axes) == 4
    assert [len(panel.lines) for panel in figure.axes] == [3, 3, 3, 3]
    legends = [[text.get_text() for text in part.legends[0].texts] for part in figure.subfigs]
    assert legends == [[f"{name}/{method}" for method in methods] for name, methods in (
        ("ring", ("plain", "aware", "all")), ("social", ("pairs", "aware", "all")),
    )]  # fmt: skip
    names = [path.name for path in save_paper_figures(folder.path, ["svg"])]
    assert [name for name in names if not name.startswith("graph")] == [
        f"{what}-{name}.svg" for name in ("ring", "social") for what in ("curve-accuracy", "curve-loss", "partition")
    ]


def test_a_topology_in_progress_does_not_cut_the_others(tmp_path):
    path = tmp_path / "run"
    written(path)
    metrics = path / "social" / "pairs" / "seed-1" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:4]))
    ring, social = summarize(read_folder(path)).tables
    assert (ring.steps, social.steps) == ("after 10 steps", "after 4 steps")


@cases("variants", ["a", "b"], ["ring/a", "ring/b"])
def test_with_one_topology_nothing_is_divided(variants, tmp_path):
    folder = read_folder(made_folder(tmp_path, {variant: [records(0.5, 3)] for variant in variants}))
    (experiment,) = page_data([folder])["experiments"]
    assert (experiment["name"], experiment["separate"]) == ("made", False)
    assert [row["short"] for row in experiment["rows"]] == variants
    assert summarize(folder).table.rows.keys() == set(variants)
    assert [part.variants for part in folder.by_topology()] == [variants]
