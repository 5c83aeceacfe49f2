from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_ind, ttest_rel

from builders import cases, refused
from mixwise.errors import ConfigError
from mixwise.experiments.config import Recipe
from mixwise.report.folder import Run, RunFolder
from mixwise.report.page import _caption
from mixwise.report.paired import paired
from mixwise.report.records import columns, series
from mixwise.report.summary import summarize as summary_of
from mixwise.report.table import Cell


def summarize(results, metrics, window, steps=None, scenes=None):
    """The table of runs in memory, by variant and seed; `steps` is how many each should have."""
    runs = [
        Run(name, seed, records, (scenes or {}).get(name), steps=steps)
        for name, seeds in results.items()
        for seed, records in seeds.items()
    ]
    seeds = list(next(iter(results.values())))
    return summary_of(RunFolder(Path("."), "made", "", list(metrics), window, list(results), seeds, runs))


def results(**values):
    return {name: {seed: records(run) for seed, run in enumerate(runs)} for name, runs in values.items()}


def records(values):
    return [{"step": step, "loss": value} for step, value in enumerate(values)]


@pytest.mark.parametrize("every", [1, 2, 7])
def test_rolling_mean_is_the_mean_of_the_values_of_the_last_steps(every):
    values, steps = np.random.default_rng(0).standard_normal(20), every * np.arange(20)
    expected = [values[(steps > t - 5) & (steps <= t)].mean() for t in steps]
    run = [{"step": step, "loss": value} for step, value in zip(steps, values, strict=True)]
    ((group,),) = columns([run], ["loss"], most=20, window=5, digits=15)
    assert group["y"]["loss"] == pytest.approx(expected, abs=1e-14)


def evaluated(every, last):
    """Records of every step up to `last`, with an accuracy after every so many steps and after the last."""
    return [
        {"step": t, "loss": float(t)} | ({"accuracy": t / 100} if (t + 1) % every == 0 or t == last else {})
        for t in range(last + 1)
    ]


@pytest.mark.parametrize("every", [1, 4, 13, 100])
def test_by_default_a_metric_is_that_of_its_last_record(every):
    window = Recipe.model_fields["window"].default
    summary = summarize({"a": {0: evaluated(every, last=32)}}, ["accuracy", "loss"], window)
    assert summary.rows["a"].cells == (Cell(0.32, None), Cell(32.0, None))
    assert summary.table.caption == "After 33 steps; seed 0"


def test_a_window_counts_steps_and_the_caption_names_those_that_were_averaged():
    runs = {0: evaluated(13, last=32), 1: evaluated(13, last=32)}  # evaluated after steps 12, 25 and 32
    summary = summarize({"a": runs}, ["accuracy", "loss"], window=5)
    assert [cell.mean for cell in summary.rows["a"].cells] == [0.32, pytest.approx(30)]
    assert summary.table.caption.startswith(
        "Accuracy: after 33 steps; loss: average after 29 to 33 steps; mean ± standard deviation"
    )
    both = summarize({"a": runs}, ["accuracy"], window=8)
    assert both.rows["a"].cells[0].mean == pytest.approx((0.25 + 0.32) / 2)
    assert both.table.caption.startswith("Average after 26 and 33 steps; ")


def test_the_summary_averages_the_window_first_and_the_seeds_then():
    summary = summarize(results(a=[[9, 1, 3], [9, 5, 7]], b=[[0, 0, 0], [0, 0, 2]]), ["loss"], window=2)
    assert summary.rows["a"].cells == (Cell(4.0, pytest.approx(np.sqrt(8))),)  # means 2 and 6
    assert summary.rows["b"].cells[0].mean == 0.5
    assert "| a | 4.00 ± 2.83 |" in summary.to_markdown("t")
    assert "| b | **0.500 ± 0.707** |" in summary.to_markdown("t")


def test_one_seed_has_no_deviation():
    summary = summarize(results(a=[[1, 2]]), ["loss"], window=1)
    assert summary.to_csv() == "variant,loss_mean,loss_std,diverged\na,2.0,,0\n"
    assert "±" not in summary.to_markdown("t")


@cases(
    "cell, text",
    (Cell(445.66, 196.8), "446 ± 197"),
    (Cell(0.0021588, 0.0020359), "(2.16 ± 2.04)e-3"),
    (Cell(0.0021588, None), "2.16e-3"),
    (Cell(0.0, 0.0), "0.00 ± 0.00"),
    (Cell(float("inf"), float("nan")), "inf ± nan"),
    (Cell(0.123456, 0.01), "0.123 ± 0.010"),
)
def test_cells_show_three_digits_and_the_deviation_to_the_same_place(cell, text):
    assert str(cell) == text


def test_an_unknown_metric_lists_the_ones_there_are():
    refused(ConfigError, r"'accuracy'.*loss", series, [{"loss": 1.0}], "accuracy")


# --- runs in progress, references, curves ---
def test_runs_in_progress_are_compared_at_a_step_that_all_have_reached():
    whole = {"a": {0: evaluated(5, last=19), 1: evaluated(5, last=19)}, "b": {0: evaluated(5, last=19)[:13]}}
    summary = summarize(whole, ["accuracy", "loss"], window=1, steps=20)
    assert [cell.mean for cell in summary.rows["a"].cells] == [cell.mean for cell in summary.rows["b"].cells]
    assert summary.table.caption.startswith("Accuracy: after 10 steps; loss: after 13 steps")
    assert summary.difference("a", "b").seeds == 1
    done = summarize(whole | {"b": {0: evaluated(5, last=19)}}, ["accuracy"], window=1, steps=20)
    assert done.steps == "after 20 steps"


def test_finished_runs_of_different_lengths_are_compared_at_their_ends():
    runs = {"a": {0: evaluated(5, last=9)}, "b": {0: evaluated(5, last=19)}}
    assert summarize(runs, ["accuracy"], window=1).steps == "at the end of each run, after 10 to 20 steps"


def test_a_reference_is_listed_last_and_never_the_best():
    runs = results(all=[[0.0], [0.0]], a=[[1.0], [2.0]], b=[[3.0], [1.5]])
    summary = summarize(runs, ["loss"], window=1, scenes={"all": {"reference": True}})
    assert [row.variant for row in summary.table.shown] == ["a", "b", "all"]
    assert summary.table.baseline.variant == "a"
    text = summary.to_markdown("t")
    assert "| a | **1.50" in text
    assert "| all (reference) | 0.00" in text
    only = summarize(results(all=[[0.0]]), ["loss"], window=1, scenes={"all": {"reference": True}})
    assert only.table.is_best(only.rows["all"], 0)


def test_the_last_point_of_a_curve_is_the_number_in_the_table_however_small():
    losses = np.concatenate([[1e9], np.geomspace(1.0, 1e-12, 2999)])
    runs = {"a": {0: records(losses)}}
    expected = summarize(runs, ["loss"], window=5).rows["a"].cells[0].mean
    assert expected == pytest.approx(losses[-5:].mean(), rel=1e-12)
    for most in (100, 10_000):
        ((group,),) = columns([runs["a"][0]], ["loss"], most, 5)
        assert group["y"]["loss"][-1] == pytest.approx(expected, rel=1e-3)


# --- seeds are paired ---
VALUES = st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=2, max_size=12)


@given(pairs=VALUES, higher=st.booleans())
def test_swapping_the_methods_flips_the_sign_and_the_wins(pairs, higher):
    a, b = ({seed: pair[k] for seed, pair in enumerate(pairs)} for k in (0, 1))
    one, two = paired(a, b, higher=higher), paired(b, a, higher=higher)
    assert (one.mean, one.half, one.wins, one.losses, one.p) == (-two.mean, two.half, two.losses, two.wins, two.p)
    assert one.clear == two.clear
    shifted = paired(a, {seed: value + 8.0 for seed, value in a.items()}, higher=higher)
    assert (shifted.wins, shifted.losses) == ((0, len(a)) if higher else (len(a), 0))
    assert paired(a, a, higher=higher).clear is False


@pytest.mark.parametrize("n", [2, 5, 10])
def test_interval_and_test_are_those_of_scipy_on_the_seeds_that_both_have(n):
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=n), rng.normal(0.4, size=n)
    found, oracle = (
        paired({**dict(enumerate(a)), 90: 1.0}, {**dict(enumerate(b)), 91: 5.0}, higher=True),
        ttest_rel(a, b),
    )
    low, high = oracle.confidence_interval(0.95)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high), rel=1e-10)
    assert found.p == (None if n < 5 else pytest.approx(oracle.pvalue, rel=1e-10))
    assert (found.seeds, found.wins, found.losses) == (n, (a > b).sum(), (a < b).sum())
    assert paired({90: 1.0}, {91: 5.0}, higher=True) is None


def test_pairing_sees_what_standard_deviations_hide():
    """Seeds that are hard for one method are hard for the other: the ranges overlap, and it wins on all of them."""
    hard = np.linspace(0.3, 0.9, 10)
    better = hard + 0.01 + 0.001 * np.arange(10)
    found, unpaired = paired(dict(enumerate(better)), dict(enumerate(hard)), higher=True), ttest_ind(better, hard)
    assert better.mean() - hard.mean() < hard.std(ddof=1)
    assert found.clear
    assert found.wins == 10
    assert found.p < 1e-4 < 0.5 < unpaired.pvalue


def test_a_win_on_every_seed_is_clear_even_if_one_of_them_is_huge():
    gains = np.array([0.1] * 9 + [100.0])
    found = paired(dict(enumerate(gains)), dict.fromkeys(range(10), 0.0), higher=True)
    assert found.mean < found.half
    assert found.clear
    assert not paired(dict(enumerate(gains[5:])), dict.fromkeys(range(5), 0.0), higher=True).clear


# --- solves that failed ---
def solving(solves, failed):
    """Records that count solves, but for the last one: weights were not optimized since the one before."""
    counted = {"solves": solves, "solves_failed": failed} if solves else {}
    return [{"step": t, "loss": 1.0} | (counted if t < 5 else {}) for t in range(6)]


def test_failed_solves_are_named_below_the_table_and_in_the_report():
    """Those of all seeds together; a variant without any is not named."""
    runs = {"aware": {0: solving(20, 3), 1: solving(20, 0)}, "fine": {0: solving(20, 0)}, "fixed": {0: solving(0, 0)}}
    summary = summarize(runs, ["loss"], window=1)
    (note,) = summary.notes
    assert note == "aware: 3 of 40 solves failed; the weights before stayed in use"
    for text in (str(summary), summary.to_markdown("t"), summary._repr_html_(), _caption(summary.tables[0], True)):
        assert text.count(note) == text.count("solves failed") == 1
