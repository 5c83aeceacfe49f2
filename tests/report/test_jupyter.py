"""Pictures and tables in notebooks are well-formed, complete, and have every text escaped."""

import base64
import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

import mixwise as mw
from builders import refused, svg_texts
from mixwise.errors import ConfigError
from mixwise.experiments import load_recipe, load_run, plan_experiment, run_experiment
from mixwise.report.summary import Summary
from mixwise.report.table import Cell, Row, Table

EVIL = '<script>alert("x")</script>&'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "quadratics"
    changes = ["steps=12", "seeds=0,1", "variants=dsgd-metropolis,gme-every-step"]
    run_experiment(plan_experiment(load_recipe("quadratics"), changes), folder)
    return folder


def text_of(html):
    return ET.fromstring(f"<div>{html}</div>")  # raises if it is not well-formed


def test_a_mixing_matrix_is_a_heat_map_with_its_weights():
    W = mw.minimize_gme(np.diag([1.0, 2.0, 3.0, 4.0]), mw.graphs.ring(4)).W
    shown = svg_texts(W._repr_svg_())
    for weight in W.weights[W.weights >= 0.005]:
        assert f"{weight:.2f}".removeprefix("0") in shown
    assert mw.mixing.metropolis_hastings(mw.graphs.ring(100))._repr_svg_() is not None
    assert mw.mixing.metropolis_hastings(mw.graphs.ring(5000))._repr_svg_() is None


def curves_of(html):
    return base64.b64decode(re.search(r"data:image/svg\+xml;base64,([\w+/=]+)", html)[1]).decode()


@pytest.fixture
def run(folder):
    return load_run(folder)


def test_a_run_is_its_table_and_one_panel_per_metric(run, folder):
    assert run.missing == ()
    assert list(run.results) == ["dsgd-metropolis", "gme-every-step"]
    assert run.summary.to_csv() == (folder / "summary.csv").read_text("utf-8")
    shown = run._repr_html_()
    page = text_of(shown)
    assert len(page.findall(".//tbody/tr")) == 2
    assert str(run.summary.rows["gme-every-step"].cells[0]) in "".join(page.itertext())
    drawn = svg_texts(curves_of(shown))
    assert drawn.count("step") == len(run.recipe.metrics) == 3
    assert drawn[-2:] == ["dsgd-metropolis", "gme-every-step"]  # one legend for all panels


def test_curves_and_rows_hold_the_records(run, folder):
    steps, values = run.curve("gme-every-step", "loss")
    assert steps.tolist() == list(range(12))
    assert values.shape == (2, 12)
    rows = [row for row in run.rows() if row["variant"] == "gme-every-step" and row["seed"] == 1]
    assert [row["loss"] for row in rows] == values[1].tolist()
    refused(ConfigError, "dsgd-metropolis", run.curve, "no-such-variant", "loss")
    refused(ConfigError, r"config\.yaml", load_run, folder / "gme-every-step")


def test_a_run_that_was_interrupted_shows_what_was_recorded(folder, tmp_path):
    half = tmp_path / "half"
    shutil.copytree(folder, half)
    shutil.rmtree(half / "dsgd-metropolis" / "seed-1")
    records = half / "gme-every-step" / "seed-0" / "metrics.jsonl"
    records.write_text(records.read_text("utf-8")[:-40], "utf-8")  # cut off in the middle of a line
    run = load_run(half)
    assert run.missing == ("gme-every-step, seed 0: 11 of 12 steps", "not started: dsgd-metropolis, seed 1")
    assert "not started: dsgd-metropolis, seed 1" in run._repr_html_()
    assert repr(run).endswith("2 variants, 3 runs, not finished)")
    assert run.curve("gme-every-step", "loss")[1].shape == (2, 11)
    shutil.rmtree(half / "dsgd-metropolis")
    shutil.rmtree(half / "gme-every-step")
    assert "holds no run" in "".join(text_of(load_run(half)._repr_html_()).itertext())


def test_names_in_tables_and_legends_are_text(run):
    summary = Summary((Table(("loss",), {EVIL: Row(EVIL, (Cell(1.0, None),))}, "step 0", (0,)),))
    assert EVIL in list(text_of(summary._repr_html_()).itertext())
    runs = [replace(each, variant=EVIL) for each in run.found.runs if each.variant == "gme-every-step"]
    found = replace(run.found, variants=[EVIL], runs=runs)
    strange = replace(run, recipe=run.recipe.model_copy(update={"description": EVIL}), found=found)
    shown = strange._repr_html_()
    assert "".join(text_of(shown).itertext()).count(EVIL) == 2  # the description, the table
    assert EVIL in svg_texts(curves_of(shown))
