"""The data behind a report, and the page as text; tests/report/test_browser.py opens it."""

import json
import re
import shutil
import urllib.error
import urllib.request
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import cases
from mixwise.experiments import RunConfig, load_recipe, plan_experiment, run_experiment
from mixwise.experiments.build import prepare
from mixwise.graphs import Graph, complete, directed_ring, ring, star
from mixwise.mixing import metropolis_hastings, minimize_gme, uniform_sender
from mixwise.plan import Plan
from mixwise.report.figures import save_paper_figures
from mixwise.report.folder import Run, WeightsLine, read_folder, read_record
from mixwise.report.narrative import narrative
from mixwise.report.page import in_html, page, page_data, save_page
from mixwise.report.records import columns
from mixwise.report.summary import summarize
from mixwise.report.table import tabulate
from mixwise.report.weights import LETTERS, decoded, packed_nodes, packed_weights
from mixwise.storage import sealed
from mixwise.training.run_log import MAX_LINES, _WeightsLog, encoded, stride
from run_folders import made_folder, read_records, served
from strategies import connected_graphs


def quadratics(*overrides):
    return plan_experiment(load_recipe("quadratics"), ["steps=14", "variants=dsgd-metropolis,ha-dsgd", *overrides])


@pytest.fixture(scope="module")
def run(tmp_path_factory, no_pictures):
    folder = tmp_path_factory.mktemp("page") / "run"
    run_experiment(quadratics("seeds=0,1"), folder)
    return folder


@pytest.fixture
def copy(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


# --- weights over time ---
def matrix(arcs, n):
    """W from the arcs that carry something; a loop has what its row lacks of 1."""
    W = np.zeros((n, n))
    for i, j, w in arcs:
        W[i, j] = w / 1000
    return W + np.diag(1 - W.sum(axis=1))


def unpacked(packed, k, channel="params"):
    """The rounds of look k as the page reads them."""
    arcs = list(zip(packed["arcs"][::2], packed["arcs"][1::2], strict=True))
    for round_ in packed[channel][k]:
        if isinstance(round_, str):
            pairs = zip(round_[::2], round_[1::2], strict=True)
            weights = [64 * LETTERS.index(a) + LETTERS.index(b) for a, b in pairs]
        else:
            weights = [0] * len(arcs)
            for arc, weight in zip(round_[::2], round_[1::2], strict=True):
                weights[arc] = weight
        yield [(i, j, w) for (i, j), w in zip(arcs, weights, strict=True) if w]


def as_read(step, plan):
    """The weights of a plan after they were written to a file and read."""
    return read_record(sealed(json.dumps({"step": step, **encoded(plan)})).encode(), WeightsLine)


@given(graph=connected_graphs(min_nodes=2, max_nodes=9), seed=st.integers(0, 99))
def test_weights_survive_the_file_and_the_page_to_a_thousandth(graph, seed):
    n = graph.n
    G = np.random.default_rng(seed).standard_normal((n, 4))
    G -= G.mean(axis=0)
    rounds = (metropolis_hastings(graph), minimize_gme(G @ G.T, graph).W, metropolis_hastings(complete(n)))
    plan = Plan(rounds, updates=rounds[::-1])
    line = as_read(3, plan)
    scene = {"n": n, "edges": graph.edge_array.tolist()}
    packed = json.loads(json.dumps(packed_weights(Run("v", 0, [], scene, [line]), most=10)))
    # Half a thousandth per arc, and a loop takes the error of its whole row.
    for W, from_file, on_page in zip(rounds, line["params"], unpacked(packed, 0), strict=True):
        assert matrix(decoded(from_file), n) == pytest.approx(W.to_dense(), abs=0.0006 * n)
        assert sorted(on_page) == sorted(decoded(from_file))
    assert [sorted(r) for r in unpacked(packed, 0, "updates")] == [sorted(r) for r in unpacked(packed, 0)][::-1]


def test_weights_on_directed_graphs_and_trees_are_kept():
    W = uniform_sender(directed_ring(5))
    (only,) = as_read(0, Plan((W,)))["params"]
    assert matrix(decoded(only), 5) == pytest.approx(W.to_dense(), abs=0.003)
    line = as_read(0, Plan((), tree=star(4)))
    packed = packed_weights(Run("v", 0, [], {"n": 4, "edges": star(4).edge_array.tolist()}, [line]), most=10)
    assert packed["tree"]
    assert set(zip(packed["arcs"][::2], packed["arcs"][1::2], strict=True)) == {
        arc for i in (1, 2, 3) for arc in ((0, i), (i, 0))
    }


@pytest.mark.parametrize("mixings", [1, 2, 199, 200, 201, 400, 1000, 12345])
def test_recorded_mixings_are_few_and_include_both_turns_of_an_alternating_policy(mixings):
    recorded = range(0, mixings, stride(mixings, {"params": [0] * 32}))
    assert len(recorded) <= MAX_LINES
    assert mixings < 2 or {t % 2 for t in recorded} == {0, 1}
    assert 1000 / stride(1000, {"params": [0] * 10_000}) * 10_000 <= 500_000


@cases(
    "graph, rounds, most", (ring(16), 1, 60_000), (ring(16), 2, 90_000), (ring(64), 40, 999_999), (ring(12_000), 1, 0)
)
def test_the_weights_of_pairs_stay_small_in_a_run_of_100000_steps(graph, rounds, most, tmp_path):
    """Two plans in turn, so that every line differs from the one before; large graphs do not fill the disk."""
    log = _WeightsLog(tmp_path / "weights.jsonl", graph, steps=100_000, local_steps=1)
    n = graph.n
    matchings = [Graph(n, [(i, (i + 1) % n) for i in range(start, n, 2)]) for start in range(2)]
    pairs = [metropolis_hastings(matching) for matching in matchings]
    plans = [Plan(tuple(pairs[(k + r) % 2] for r in range(rounds))) for k in range(2)]
    for t in range(100_000):
        log.see(t, plans[t % 2])
    log.file.close()
    text = (tmp_path / "weights.jsonl").read_text()
    assert len(text) <= most
    assert bool(text) == bool(most)
    for line in (read_record(line, WeightsLine) for line in text.encode().splitlines()[-1:]):
        for r, round_ in enumerate(line["params"]):
            used = matchings[(line["step"] + r) % 2].edges
            assert sorted(decoded(round_)) == sorted(arc for i, j in used for arc in ((i, j, 500), (j, i, 500)))


def test_models_of_nodes_are_recorded_small_and_shown_as_recorded(run):
    """Two numbers per node relative to their mean: 0 in sum, and their squares follow the consensus distance."""
    lines, records = (read_records(run, "ha-dsgd", file=file) for file in ("nodes.jsonl", "metrics.jsonl"))
    assert [line["step"] for line in lines] == list(range(14))
    xy = np.array([line["xy"] for line in lines]).reshape(14, -1, 2)
    assert xy.mean(axis=1) == pytest.approx(0, abs=1e-2 * np.abs(xy).max())
    spread = (xy**2).sum(axis=2).mean(axis=1)
    ratio = spread / [record["consensus_distance"] for record in records]
    assert 0.2 < ratio.mean() < 5  # E‖Su‖² = ‖u‖², with a large variance for two numbers
    packed = packed_nodes(Run("v", 0, [], {"n": 16, "edges": []}, nodes=[{"accuracy": None, **line} for line in lines]))
    first, second = packed["xy"][5][:2]
    value = packed["size"] * ((64 * LETTERS.index(first) + LETTERS.index(second)) / 2000 - 1)
    assert value == pytest.approx(lines[5]["xy"][0], abs=packed["size"] / 2000)


def test_the_steps_of_nodes_are_few_in_a_long_run():
    prepared = prepare(quadratics("steps=100000", "record_every=7").runs["ha-dsgd"], seed=0, check=False)
    steps = prepared.pictured
    assert len(steps) <= 100
    assert steps <= set(prepared.recorded(100_000))
    assert max(steps) == 99_999


def test_each_method_is_opened_with_its_control(run):
    plain, aware = page_data([read_folder(run)])["experiments"][0]["rows"]
    assert (plain["name"], plain["control"], plain["plain"]) == ("dsgd-metropolis", None, True)
    assert (aware["name"], aware["control"], aware["reference"]) == ("ha-dsgd", "dsgd-metropolis", False)


def test_a_fixed_policy_writes_its_weights_once_and_an_optimized_one_at_every_look(run):
    fixed, optimized = (read_records(run, name, file="weights.jsonl") for name in ("dsgd-metropolis", "ha-dsgd"))
    assert len(fixed) == 1
    assert [line["step"] for line in optimized] == list(range(14))


# --- incomplete folders ---
@cases(
    "name, text, says",
    ("config.yaml", "variants: [unclosed", "config.yaml is damaged"),
    ("config.yaml", "- 1\n- 2\n", "config.yaml is damaged"),
    ("config.yaml", "variants: 3\nseeds: x\nmetrics: {a: 1}\nwindow: -1\n", ""),
    ("ha-dsgd/seed-0/metrics.jsonl", "", "ha-dsgd, seed 0: no records"),
    ("ha-dsgd/seed-0/metrics.jsonl", 'nonsense\n{"step": 1, "loss": NaN}\n[3]\n{"loss": 1}\n', "3 damaged lines"),
    ("ha-dsgd/seed-0/metrics.jsonl", '{"step": 0, "loss": "text", "x": 1}\n', "1 of 14 steps"),
    ("ha-dsgd/seed-0/metrics.jsonl", '{"step": 0, "x": [1]}\n', "1 damaged line"),
    ("ha-dsgd/seed-0/metrics.jsonl", '{"step": 0, "loss": Infinity, "other": 1}\n{"step": 1}\n', "2 of 14 steps"),
    ("ha-dsgd/seed-0/scene.json", "{", "its graph cannot be drawn"),
    ("ha-dsgd/seed-0/scene.json", '{"n": 2, "edges": [[0, 7]]}', "its graph cannot be drawn"),
    ("ha-dsgd/seed-0/scene.json", '{"n": 2, "edges": [], "counts": [[1]], "classes": ["a"]}', "cannot be drawn"),
    ("ha-dsgd/seed-0/weights.jsonl", "{{\n", "damaged lines in weights.jsonl"),
    ("ha-dsgd/seed-0/weights.jsonl", '{"step": 0, "params": [{"edges": [1]}]}\n', "damaged lines in weights.jsonl"),
    ("ha-dsgd/seed-0/weights.jsonl", '{"step": 0, "params": [{"arcs": [0, 99, 5]}]}\n', "does not fit the graph"),
    (
        "ha-dsgd/seed-0/weights.jsonl",
        '{"step": 0, "params": [{"arcs": [0, 1, 1e999]}]}\n',
        "damaged lines in weights.jsonl",
    ),
)
def test_a_damaged_file_takes_nothing_else_with_it(copy, tmp_path, name, text, says):
    lines = text.splitlines(keepends=True)
    whole = [
        sealed(line.strip()) + "\n" if name.endswith("l") and line.startswith('{"step"') else line for line in lines
    ]
    (copy / name).write_text("".join(whole))
    (found,) = save_page([copy], tmp_path / "out.html")
    assert says in " | ".join(found.problems)
    assert sum(bool(run.records) for run in found.runs) >= 3
    json.loads(in_html(page_data([found])), parse_constant=pytest.fail)  # which knows no infinity
    if "weights" in name:
        save_paper_figures(copy, ["svg"], out=tmp_path / "figures")


def test_a_folder_of_run_folders_stands_for_those_in_it(run, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(run, tmp_path / "both" / name)
    found = save_page([tmp_path / "both"], tmp_path / "out.html")
    assert [folder.path.name for folder in found] == ["a", "b"]
    data = page_data(found)
    assert data["title"] == "quadratics (a) and quadratics (b)"
    assert len({row["name"] for experiment in data["experiments"] for row in experiment["rows"]}) == 4


def test_the_page_and_the_table_take_the_same_steps_and_name_them(tmp_path):
    records = [{"step": t, "loss": 1.0} | ({"accuracy": t / 100} if t in (12, 25, 32) else {}) for t in range(33)]
    folder = read_folder(made_folder(tmp_path, {"a": [records]}, metrics=["accuracy"], window=8))
    (experiment,), table = page_data([folder])["experiments"], tabulate(folder)
    assert experiment["rows"][0]["cells"][0]["mean"] == pytest.approx(table.rows["a"].cells[0].mean)
    assert table.caption == "Average after 26 and 33 steps; seed 0"
    assert experiment["caption"].startswith(table.caption)


# --- the story ---
def ended(folder, finals, kinds=None, metric="accuracy", sent=None):
    """A folder whose runs end at these values, variant by variant and seed by seed."""
    runs, scenes = {}, {}
    for variant, values in finals.items():
        size = {"bytes_parameters": (sent or {}).get(variant, 1e6), "bytes_sketches": 0}
        runs[variant] = [[{"step": 0, metric: value, **size}] for value in values]
        algorithm, policy = (kinds or {}).get(variant, ("dsgd", "auto"))
        scenes[variant] = {
            "n": 2, "edges": [[0, 1]], "steps": 1, "algorithm_kind": algorithm, "policy_kind": policy,
            "reference": policy == "full-averaging",
        }  # fmt: skip
    return made_folder(folder, runs, scenes, metrics=[metric])


def told(folder):
    found = read_folder(folder)
    return "".join(text for text, _ in narrative(found, tabulate(found))).replace("\N{NO-BREAK SPACE}", " ")


PLAIN = {"plain": ("dsgd", "metropolis-hastings"), "all": ("dsgd", "full-averaging")}
HARD = np.linspace(0.3, 0.9, 10)  # seeds that are hard for one method are hard for the other


@cases(
    "finals, options, says, never",
    (  # the winner, the gap and the bytes; full averaging is no gossip
        {"plain": [0.60] * 5, "aware": [0.70] * 5, "all": [0.9] * 5},
        {"sent": {"plain": 1e6, "aware": 2e6}},
        [
            "aware did best: accuracy 70.0 ± 0.0 %",
            "10.0 points higher than plain (plain gossip with Metropolis-Hastings weights), which reached 60.0 ± 0.0 %",
            "2 times as many bytes (2 MB per node, compared with 1 MB)",
            "For reference, all averages over all nodes and reaches 90.0 ± 0.0 %",
            "on 5 of 5 seeds; the 95 % interval of the difference is 10.0 to 10.0 points (paired t-test: p < 0.001)",
        ],
        "chance",
    ),
    (  # a small difference and few seeds
        {"plain": [0.5, 0.7], "aware": [0.6, 0.7]},
        {},
        [
            "better on 1 of 2 seeds; the 95 % interval of the difference is -58.5 to 68.5 points, which includes 0",
            "the difference is not clear",
            "With only 2 seeds",
        ],
        "sign test",
    ),
    (
        {"plain": [0.5], "aware": [0.6]},
        {},
        ["With a single seed, a difference may be due to chance."],
        "interval",
    ),
    # A win on every seed is clear, however much the seeds vary.
    ({"plain": [*HARD], "aware": [*HARD + 0.02]}, {}, ["better on 10 of 10 seeds"], "not clear"),
    (
        {"plain": [*HARD], "aware": [*HARD[:9] + 0.001, 0.999]},
        {},
        ["a win on every seed is no chance (sign test: p = 0.002)"],
        "not clear",
    ),
    (  # of an error, less is better
        {"plain": [0.04] * 6, "aware": [0.01] * 6},
        {"metric": "distance_to_optimum"},
        ["aware did best", "lower by a factor of 4 than plain", "the same number of bytes"],
        "higher",
    ),
    (  # so is the difference of any score: 0.9 is not 12 % more than 0.8
        {"plain": [0.8] * 6, "aware": [0.9] * 6},
        {"metric": "f1"},
        ["aware did best: f1 0.900 ± 0.000", "That is 0.1 higher than plain", "is 0.1 to 0.1 (paired"],
        "% higher",
    ),
    (  # without an upper end, a share says more
        {"plain": [80.0] * 6, "aware": [90.0] * 6},
        {"metric": "score"},
        ["That is 12% higher than plain"],
        "points",
    ),
    ({"only": [0.5]}, {}, ["only reaches 50.0 %"], "did best"),
)
def test_the_story_tells_the_result_and_how_certain_it_is(finals, options, says, never, tmp_path):
    text = told(ended(tmp_path, finals, PLAIN, **options))
    assert [words for words in says if words not in text] == []
    assert never not in text


def test_the_story_names_controls_and_suggests_one_for_a_policy_that_looks(tmp_path):
    base = {"steps": 1, "graph": "ring:4", "optimizer": {"lr": 0.1}}
    aware = {"kind": "heterogeneity-aware", "alternate_with": "metropolis-hastings"}
    policies = {"aware": aware, "placebo": {**aware, "control": "permuted"}, "plain": "metropolis-hastings"}
    policies["pairs"] = {"kind": "aware-pairs"}
    scenes = {}
    for name, policy in policies.items():
        prepared = prepare(RunConfig.model_validate(base | {"policy": policy}), seed=0)
        scenes[name] = {"n": 2, "edges": [[0, 1]], "steps": 1} | prepared.method(prepared.start())

    @cache
    def folder(*names):
        finals = {"aware": [0.7, 0.8], "placebo": [0.6, 0.6], "plain": [0.5, 0.5], "pairs": [0.4, 0.4]}
        runs = {name: [[{"step": 0, "accuracy": value}] for value in finals[name]] for name in names}
        seen = {name: scenes[name] for name in names}
        return read_folder(made_folder(tmp_path / "-".join(names), runs, seen, metrics=["accuracy"]))

    suggests = "To see what looking at the nodes adds, compare with control: permuted in the policy of"
    whole, shown = tabulate(folder(*policies)), summarize(folder(*policies))
    assert whole.suggestion == f"{suggests} pairs."
    assert "| placebo (control: permuted) | 0.600" in shown.to_markdown("t")
    assert all(whole.suggestion in text for text in (str(shown), shown.to_markdown("t"), shown._repr_html_()))
    assert tabulate(folder("aware", "placebo", "plain")).suggestion == ""
    assert tabulate(folder("aware", "plain")).suggestion == f"{suggests} aware."
    assert tabulate(folder("plain", "placebo")).suggestion == tabulate(folder("aware")).suggestion == ""
    story = told(folder(*policies).path)
    assert "Its control placebo (permuted) reaches 60.0 ± 0.0 %: looking at the nodes adds +15.0 points" in story
    assert story.endswith(whole.suggestion)
    assert told(folder("placebo", "plain").path).startswith("placebo (a control: permuted) did best")
    (experiment,) = page_data([folder(*policies)])["experiments"]
    assert experiment["rows"][1]["note"].startswith("control (permuted): D-SGD, weights optimized")


def test_an_empty_folder_gives_a_report_that_says_so(tmp_path):
    assert "nothing to compare" in told(tmp_path)
    data = page_data([read_folder(tmp_path)])
    missing = "config.yaml is missing, so the planned runs are not known"
    assert data["experiments"][0]["problems"] == [missing, "the folder contains no runs"]
    assert data["runs"] == []


def test_the_table_of_the_page_marks_references_and_pairs_seeds(tmp_path):
    finals = {"plain": [0.6, 0.7], "aware": [0.7, 0.82], "all": [0.9, 0.9]}
    (experiment,) = page_data([read_folder(ended(tmp_path, finals, PLAIN))])["experiments"]
    rows = {row["name"]: row for row in experiment["rows"]}
    assert [row["cells"][0]["best"] for row in rows.values()] == [False, True, False]
    assert [row["reference"] for row in rows.values()] == [False, False, True]
    assert rows["aware"]["difference"] == "+11.0 points [-1.7, 23.7], better on 2 of 2 seeds"
    assert rows["plain"]["difference"] is None
    assert "Accuracy, difference from plain paired by seed [95 % interval]" in experiment["caption"]


@cases(
    "changes, reference",
    ({"policy": "full-averaging"}, True),
    ({"algorithm": "all-reduce", "policy": "none"}, True),
    ({"algorithm": {"kind": "quasi-global"}, "policy": "full-averaging"}, True),
    ({"policy": "metropolis-hastings"}, False),
)
def test_a_part_declares_that_it_is_a_reference(changes, reference):
    base = {"steps": 1, "graph": "ring:4", "optimizer": {"lr": 0.1}, "policy": "auto"}
    prepared = prepare(RunConfig.model_validate(base | changes), seed=0)
    assert prepared.method(prepared.start())["reference"] is reference


# --- the page ---
def test_what_users_write_cannot_leave_the_data(run):
    found = read_folder(run)
    found.description = "</script><script>alert(1)</script><!-- \u2028 & <b>"
    data = page_data([found])
    text = in_html(data)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == json.loads(json.dumps(data))
    html = page({**data, "title": "<script>"})
    assert html.count("<script") == 2
    assert "<title>&lt;script&gt; – mixwise</title>" in html


def test_the_page_names_no_other_host_and_allows_none(run):
    html = page(page_data([read_folder(run)]))
    assert set(re.findall(r"https?://[^\s'\"<]+", html)) == {"http://www.w3.org/2000/svg"}  # a name, never loaded
    assert "default-src 'none'" in html
    assert "unsafe" not in html


def test_a_page_does_not_grow_with_the_length_of_its_runs(tmp_path):
    records = [{"step": t, "loss": 1 / (t + 1), "bytes_parameters": t} for t in range(20_000)]
    weights = [{"step": t, "params": [{"pairs": [0, 1, t % 500]}]} for t in range(5_000)]
    made_folder(tmp_path, {"a": [records]}, {"a": {"n": 2, "edges": [[0, 1]], "steps": 20_000}}, weights)
    empty, long = (len(page(page_data([read_folder(folder)]))) for folder in (tmp_path / "a", tmp_path))
    assert empty < 110_000
    assert long < empty + 60_000  # the two files have a megabyte


def test_thinned_curves_keep_the_ends_and_the_mean():
    values = np.random.default_rng(0).standard_normal(1000) + 5
    records = [{"step": 3 * t, "loss": v, "bytes_parameters": t} for t, v in enumerate(values)]
    ((group,),) = columns([records], ["loss"], most=100)
    assert group["y"]["loss"][-1] == pytest.approx(values[-1], rel=1e-3)  # as in a table
    assert len(group["steps"]) == 100
    assert (group["steps"][0], group["steps"][-1]) == (0, 2997)
    ends = np.array(group["steps"]) // 3
    weights = np.diff(ends, prepend=-1)[:-1]  # records per point
    assert np.average(group["y"]["loss"][:-1], weights=weights) == pytest.approx(
        values[: sum(weights)].mean(), rel=1e-3
    )
    assert group["x"]["bytes_parameters"] == ends.tolist()


def test_a_short_seed_is_thinned_at_the_steps_of_the_long_one_and_a_metric_has_its_own_steps():
    runs = [[{"step": t, "loss": 1.0} for t in range(n)] for n in (1000, 400)]
    long, short = (groups[0]["steps"] for groups in columns(runs, ["loss"], most=50))
    assert short[:-1] == long[: len(short) - 1]
    seldom = [{"step": t, "loss": 1.0} | ({"accuracy": 0.5} if t % 10 == 9 else {}) for t in range(30)]
    ((first, second),) = columns([seldom], ["loss", "accuracy"], most=100)
    assert (len(first["steps"]), second["steps"]) == (30, [9, 19, 29])


# --- figures for papers ---
@pytest.mark.parametrize(
    ("width", "formats", "points"), [("column", ["pdf", "png"], 3.25 * 72), ("text", ["pdf"], 6.75 * 72)]
)
def test_paper_figures_fit_their_column(run, tmp_path, width, formats, points):
    paths = save_paper_figures(run, formats, width, tmp_path)
    names = {path.name for path in paths}
    assert {"curve-distance_to_optimum.pdf", "curve-loss.pdf", "graph-ha-dsgd.pdf"} <= names
    assert len(names) == len(paths) == 6 * len(formats)
    assert all(path.stat().st_size > 1000 for path in paths)
    box = re.search(rb"/MediaBox \[\s*0 0 ([\d.]+)", (tmp_path / "curve-loss.pdf").read_bytes())
    assert float(box[1]) == pytest.approx(points)


# --- watch ---
def test_watch_answers_this_machine_only_and_tells_what_is_new(copy):
    with served(copy) as server:
        assert server.server_address[0] == "127.0.0.1"

        def get(path, **headers):
            return urllib.request.urlopen(urllib.request.Request(server.url + path, headers=headers), timeout=20)

        first = json.load(get("data.json"))
        assert (first["live"], first["running"]) == (True, False)
        newer = f"data.json?since={first['stamp']}"
        assert get(newer).status == 204
        path = copy / "ha-dsgd" / "seed-1" / "metrics.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
        second = json.load(get(newer))
        assert second["running"]
        assert second["experiments"][0]["problems"] == ["ha-dsgd, seed 1: 3 of 14 steps"]
        assert "Not all runs are finished" in second["experiments"][0]["story"][0][0]
        assert [run["done"] for run in second["runs"]] == [14, 14, 14, 3]
        assert b"<html" in get("").read()
        for path, host, code in (("", "example.org", 403), ("../config.yaml", "127.0.0.1", 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(path, Host=host)
            assert refused.value.code == code
            refused.value.close()


# --- commands ---
def test_the_commands_work_on_a_run_folder(copy, mixwise, tmp_path):
    assert mixwise("report", copy, copy, "--out", "new/page.html").returncode == 0
    assert (tmp_path / "new" / "page.html").exists()
    assert "curve-loss.svg" in mixwise("figures", copy, "--format", "svg", "--out", "figures").stdout


def test_a_port_that_is_taken_is_refused(copy, mixwise):
    with served(copy) as server:
        done = mixwise("watch", copy, "--port", server.server_port)
    assert done.returncode == 2
    assert f"--port {server.server_port} cannot be used" in done.stderr
