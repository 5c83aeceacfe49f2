import numpy as np
import pytest

from mixwise.errors import ConfigError
from mixwise.graphs import Graph, ring
from mixwise.report.graph_picture import terminal_picture
from mixwise.report.results import rolling_mean, series
from mixwise.report.table import Cell, summarize


def results(**values):
    return {name: {seed: [{"loss": v} for v in run] for seed, run in enumerate(runs)} for name, runs in values.items()}


def test_rolling_mean_is_the_mean_of_the_last_values_there_are():
    values = np.random.default_rng(0).standard_normal(20)
    expected = [values[max(0, t - 4) : t + 1].mean() for t in range(20)]
    assert rolling_mean(values, 5) == pytest.approx(expected, abs=1e-14)


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


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Cell(445.66, 196.8), "446 ± 197"),
        (Cell(0.0021588, 0.0020359), "(2.16 ± 2.04)e-3"),
        (Cell(0.0021588, None), "2.16e-3"),
        (Cell(0.0, 0.0), "0.00 ± 0.00"),
        (Cell(float("inf"), float("nan")), "inf ± nan"),
        (Cell(0.123456, 0.01), "0.123 ± 0.010"),
    ],
)
def test_cells_show_three_digits_and_the_deviation_to_the_same_place(cell, text):
    assert str(cell) == text


def test_an_unknown_metric_lists_the_ones_there_are():
    with pytest.raises(ConfigError, match=r"'accuracy'.*loss"):
        series([{"loss": 1.0}], "accuracy")


@pytest.mark.parametrize("graph", [ring(12), Graph(1, []), Graph(3, []), Graph(2, [(0, 1)])])
def test_a_picture_shows_every_node(graph):
    picture = terminal_picture(graph)
    assert all(str(node) in picture for node in range(graph.n))
    assert max(map(len, picture.splitlines())) <= 44
