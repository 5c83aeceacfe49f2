import numpy as np
import pytest

from builders import cases, refused
from mixwise.errors import ConfigError
from mixwise.experiments.config import Recipe
from mixwise.report.records import rolling_mean, series
from mixwise.report.table import Cell, summarize


def results(**values):
    return {name: {seed: records(run) for seed, run in enumerate(runs)} for name, runs in values.items()}


def records(values):
    return [{"step": step, "loss": value} for step, value in enumerate(values)]


@pytest.mark.parametrize("every", [1, 2, 7])
def test_rolling_mean_is_the_mean_of_the_values_of_the_last_steps(every):
    values, steps = np.random.default_rng(0).standard_normal(20), every * np.arange(20)
    expected = [values[(steps > t - 5) & (steps <= t)].mean() for t in steps]
    run = [{"step": step, "loss": value} for step, value in zip(steps, values, strict=True)]
    assert rolling_mean(run, "loss", 5) == pytest.approx(expected, abs=1e-14)


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
    assert summary.rows["a"] == (Cell(0.32, None), Cell(32.0, None))
    assert summary.caption == "Step 32; seed 0"


def test_a_window_counts_steps_and_the_caption_names_those_that_were_averaged():
    runs = {0: evaluated(13, last=32), 1: evaluated(13, last=32)}  # evaluated after steps 12, 25 and 32
    summary = summarize({"a": runs}, ["accuracy", "loss"], window=5)
    assert [cell.mean for cell in summary.rows["a"]] == [0.32, pytest.approx(30)]
    assert summary.caption.startswith("Accuracy: step 32; loss: average of steps 28–32; mean ± standard deviation")
    both = summarize({"a": runs}, ["accuracy"], window=8)
    assert both.rows["a"][0].mean == pytest.approx((0.25 + 0.32) / 2)
    assert both.caption.startswith("Average of steps 25 and 32; ")


def test_the_summary_averages_the_window_first_and_the_seeds_then():
    summary = summarize(results(a=[[9, 1, 3], [9, 5, 7]], b=[[0, 0, 0], [0, 0, 2]]), ["loss"], window=2)
    assert summary.rows["a"] == (Cell(4.0, pytest.approx(np.sqrt(8))),)  # means 2 and 6
    assert summary.rows["b"][0].mean == 0.5
    assert "| a | 4.00 ± 2.83 |" in summary.to_markdown("t")
    assert "| b | **0.500 ± 0.707** |" in summary.to_markdown("t")


def test_one_seed_has_no_deviation():
    summary = summarize(results(a=[[1, 2]]), ["loss"], window=1)
    assert summary.to_csv() == "variant,loss_mean,loss_std\na,2.0,\n"
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
