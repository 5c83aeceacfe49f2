"""`mixwise.compare`: your own objects in a run folder like that of a recipe."""

import itertools
import json
import sys

import numpy as np
import pytest

import mixwise as mw
from builders import cases, refused, sgd
from mixwise.comparison.description import described
from mixwise.errors import ConfigError, MixwiseError
from mixwise.experiments import load_run
from mixwise.report.folder import read_folder
from mixwise.report.page import page_data
from mixwise.tasks import QuadraticTask
from run_folders import StoppedError, read_records

pytestmark = pytest.mark.usefixtures("no_pictures")
METHODS = {
    "gossip": "metropolis-hastings",
    "pairs": {"policy": "pairs", "local_steps": 2, "algorithm": "dsgd"},
    "all": "full-averaging",
}


def quadratics(seed):
    return mw.tasks.random_quadratics(8, seed=seed)


def compared(out, task=quadratics, graph=None, methods=METHODS, **changes):
    given = {"seeds": [3, 4], "optimizer": sgd(0.005), "steps": 6, "progress": False, "evaluate_every": 2, **changes}
    given = {name: value for name, value in given.items() if value is not None}
    return mw.compare(task, graph or mw.graphs.ring(8), methods, out=out, **given)


def test_the_records_are_those_of_train_and_the_folder_is_that_of_a_recipe(tmp_path):
    run = compared(tmp_path / "mine")
    for seed in (3, 4):
        options = {"optimizer": sgd(0.005), "steps": 6, "local_steps": 2, "evaluate_every": 2, "seed": seed}
        alone = mw.train(quadratics(seed), mw.graphs.ring(8), "pairs", **options)
        assert read_records(tmp_path / "mine", "pairs", seed) == [json.loads(record.to_json()) for record in alone]
    assert run.missing == ()
    assert run.summary.to_csv() == (tmp_path / "mine" / "summary.csv").read_text("utf-8")
    assert run.recipe.metrics == ["distance_to_optimum", "consensus_distance"]
    rows = {row["name"]: row for row in page_data([read_folder(tmp_path / "mine")])["experiments"][0]["rows"]}
    assert [rows[name]["reference"] for name in METHODS] == [False, False, True]
    assert rows["pairs"]["difference"].endswith("of 2 seeds")
    assert (tmp_path / "mine" / "gossip" / "seed-3" / "checkpoint").is_dir()


def test_it_prints_plots_and_is_a_frame(tmp_path, monkeypatch):
    run = compared(tmp_path / "mine")
    lines = str(run).splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["gossip", "pairs", "all"]
    assert "difference from gossip paired by seed" in str(run)
    assert len(run.plot().axes) == len(run.recipe.metrics)
    frame = run.frame()
    assert len(frame) == (6 + 3 + 6) * 2  # "pairs" mixes at every second step
    assert frame.groupby("variant").distance_to_optimum.last().to_dict().keys() == METHODS.keys()
    monkeypatch.setitem(sys.modules, "pandas", None)
    refused(ConfigError, "pip install pandas", run.frame)


def test_an_interrupted_comparison_resumes_to_the_same_bits(tmp_path):
    whole = compared(tmp_path / "whole", checkpoint_every=2)
    calls = itertools.count(1)

    def stopping(seed):
        if next(calls) == 3 + 6 + 3:  # rehearsals, checks, and two of the runs
            raise StoppedError
        return mw.tasks.random_quadratics(8, seed=seed)

    with pytest.raises(StoppedError):
        compared(tmp_path / "half", stopping, checkpoint_every=2)
    assert load_run(tmp_path / "half").missing
    refused(ConfigError, "resume=True", compared, tmp_path / "half", stopping, checkpoint_every=2)
    resumed = compared(tmp_path / "half", stopping, checkpoint_every=2, resume=True)
    assert resumed.results == whole.results
    again = compared(tmp_path / "half", stopping, checkpoint_every=2, resume=True)  # reads what is finished
    assert str(again) == str(whole).replace("whole", "half")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "mine"
    compared(folder)
    return folder


@cases(
    "changes",
    {"optimizer": sgd(0.004)},
    {"graph": mw.graphs.chain(8)},
    {"graph": "ring:8"},
    {"methods": METHODS | {"all": "metropolis-hastings"}},
    {"methods": METHODS | {"gossip": mw.HeterogeneityAware(period=3)}},
    {"task": lambda seed: mw.tasks.random_quadratics(8, dim=9, seed=seed)},
    {"steps": 8},
    {"seeds": [3]},
)
def test_other_objects_do_not_resume(changes, finished):
    refused(ConfigError, "holds another experiment", compared, finished, resume=True, **changes)


@cases(
    "says, changes",
    ("pass a function of the seed", {"task": quadratics(0)}),
    ("task.seed. is 3; return a Task", {"task": lambda seed: seed}),
    ("method pairs: unknown option 'momentum'", {"methods": {"gossip": "auto", "pairs": {"momentum": 0.9}}}),
    ("method gossip: optimizer is missing", {"optimizer": None}),
    ("methods is empty", {"methods": {}}),
    ("unknown metric 'accurracy'", {"metrics": ["accurracy"]}),
    ("method last: .*unknown policy 'nonsense'", {"methods": {"first": "auto", "last": "nonsense"}}),
    ("method last: the task has 8 nodes, the graph 4", {"graph": "ring:4", "methods": {"last": "auto"}}),
    ("method 'a b' names a folder", {"methods": {"a b": "auto"}}),
    ("method 'ring/a' names a folder", {"methods": {"ring/a": "auto"}}),
    ("graph is 5; pass a mixwise.Graph", {"graph": 5}),
    ("seeds", {"seeds": []}),
    ("seeds = 3; give whole numbers", {"seeds": 3}),
    ("seeds = '0-2'; give whole numbers", {"seeds": "0-2"}),
    (r"seeds = \[0.5\]; give whole numbers", {"seeds": [0.5]}),
    ("methods is an object of type list; name them", {"methods": ["auto"]}),
    ("optimizer is 0.1; pass a function", {"optimizer": 0.1}),
    ("steps = '6'; give a whole number", {"steps": "6"}),
)
def test_mistakes_are_one_line_before_anything_is_written(says, changes, tmp_path):
    refused(MixwiseError, says, compared, tmp_path / "mine", **changes)
    assert not (tmp_path / "mine").exists()


def test_seeds_may_be_integers_of_numpy(tmp_path):
    run = compared(tmp_path / "mine", seeds=np.arange(2), methods={"gossip": "auto"}, steps=2)
    assert run.recipe.seeds == [0, 1]


def test_a_graph_may_be_a_network_of_the_seed_with_links(tmp_path):
    link = mw.network.Link(latency=0.01, bandwidth=1e6)
    run = compared(tmp_path / "mine", graph=lambda seed: mw.SimulatedNetwork(mw.graphs.ring(8), mw.network.Links(link)))
    assert run.results["gossip"][3][-1]["network_seconds"] > 0


def test_the_config_describes_and_does_not_run(tmp_path, mixwise):
    compared(tmp_path / "mine", methods={"gossip": "auto"})
    config = tmp_path / "mine" / "config.yaml"
    assert "      def quadratics(seed):\n" in config.read_text("utf-8").replace("task: |-\n  ", "")
    result = mixwise("run", str(config))
    assert result.returncode == 2
    assert "describes Python objects, which YAML cannot hold" in result.stderr


def test_names_of_methods_may_tell_their_options(tmp_path):
    methods = {f"lr={lr}": {"optimizer": sgd(lr)} for lr in (0.004, 0.005)}
    run = compared(tmp_path / "mine", methods=methods, steps=2)
    assert run.summary.rows.keys() == methods.keys()
    assert load_run(tmp_path / "mine").recipe.variants.keys() == methods.keys()
    assert (tmp_path / "mine" / "lr=0.004" / "seed-3").is_dir()


class Interrupted(QuadraticTask):
    """The user presses Ctrl-C in step 2."""

    def losses_and_gradients(self, X, nodes, step):
        if step == 2:
            raise KeyboardInterrupt
        return super().losses_and_gradients(X, nodes, step)


def test_ctrl_c_ends_with_one_line_that_continues(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    task = lambda seed: Interrupted(quadratics(seed).A, quadratics(seed).b, seed=seed)  # noqa: E731
    with pytest.raises(SystemExit) as end:  # with a text: Python prints it, and no traceback
        compared(folder, task)
    assert end.value.code == f"stopped; continue with the same call and out={str(folder)!r}, resume=True"
    assert isinstance(end.value, KeyboardInterrupt)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)  # an interpreter must not end
    with pytest.raises(KeyboardInterrupt, match="resume=True") as end:
        compared(folder, task, resume=True)
    assert not isinstance(end.value, SystemExit)
    monkeypatch.setattr(Interrupted, "losses_and_gradients", QuadraticTask.losses_and_gradients)
    assert compared(folder, task, resume=True).missing == ()


def test_the_remedy_for_a_folder_of_a_comparison_is_python(finished, mixwise):
    says = "continue it with the call of mixwise.compare that began it and resume=True, or choose another folder"
    refused(ConfigError, says, compared, finished, resume=True, steps=8)
    result = mixwise("run", "quadratics", "--out", finished, "--resume")
    assert says in result.stderr
    (experiment,) = page_data([read_folder(finished)])["experiments"]
    assert experiment["python"]
    assert "mixwise run" not in experiment["command"]


def test_a_folder_without_its_config_cannot_be_resumed(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    refused(
        ConfigError, "holds no config.yaml, so there is nothing to resume", compared, tmp_path / "mine", resume=True
    )


def test_a_description_has_no_address_and_knows_contents():
    assert " at 0x" not in str(described(object()))
    a, b = (mw.mixing.metropolis_hastings(graph) for graph in (mw.graphs.ring(6), mw.graphs.chain(6)))
    assert described(a) == described(mw.mixing.metropolis_hastings(mw.graphs.ring(6))) != described(b)
    assert described(sgd(0.1)) == described(sgd(0.1))
