"""Every suite of benchmarks/ asks questions, and runs from start to end in a small size. Nothing is timed here."""

import json

import benchmarks
import numpy as np
import pytest
from benchmarks.measure import Benchmark, Contestant, Missing, Result, measured
from benchmarks.run import in_words, markdown, run, suite

SLOW = {"distributed", "distributed-large", "slow-link", "large", "memory", "busy"}


@pytest.mark.parametrize("name", benchmarks.SUITES)
def test_every_suite_declares_questions_and_bars(name):
    declared = list(suite(name)())
    assert declared
    for benchmark in declared:
        assert benchmark.question.endswith("?")
        assert benchmark.bar > 0
        assert benchmark.rounds >= 3 or name in benchmarks.LONG


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.soak] * (n in SLOW)) for n in benchmarks.SUITES])
@pytest.mark.filterwarnings("default")  # of the contestants
def test_rehearsal(name):
    """All contestants run, and those that a bar or a limit names exist."""
    for benchmark in suite(name)(tiny=True):
        result = measured(benchmark, rounds=2)
        everyone = [*result.samples, *result.missing]
        assert {*result.against, result.limit or result.ours} <= set(everyone)
        assert all(len(samples) == 2 and np.isfinite(samples).all() for samples in result.samples.values())
        for line in in_words(result).splitlines():
            assert len(line) <= 80 or "not here" in line


def contestants():
    return {
        "ours": Contestant(lambda i: (1.0, 1.0, 2.0)[i]),
        "fast": Contestant(lambda i: (2.0, 2.0, 2.0)[i]),
        "slow": Contestant(lambda i: (9.0, 9.0, 9.0)[i], per=3),
        "absent": Missing("pip install absent"),
    }


def test_ratios_are_taken_round_by_round_against_the_fastest_that_is_present():
    result = measured(Benchmark("?", contestants, 2.0, ("fast", "slow", "absent"), rounds=3, unit="GB"))
    assert result.samples["slow"] == [3.0] * 3
    assert result.values.tolist() == [2.0, 2.0, 1.0]
    assert result.met
    lower = measured(Benchmark("?", contestants, 0.4, "fast", "lower", rounds=3, unit="GB"))
    assert lower.values.tolist() == [0.5, 0.5, 1.0]
    assert lower.met is False
    assert "absent" in in_words(lower)
    assert "pip install absent" in in_words(lower)


def test_a_bar_without_its_contestant_is_not_measured():
    result = measured(Benchmark("?", contestants, 2.0, "absent", rounds=1, unit="GB"))
    assert result.met is None
    assert "not measured" in in_words(result)


def test_results_are_saved_and_printed_as_markdown(tmp_path, monkeypatch):
    question = Benchmark("How much?", contestants, 2.0, "fast", rounds=3, unit="GB")
    monkeypatch.setattr("benchmarks.run.suite", lambda name: lambda: [question])
    shown = []
    run(["gme"], tmp_path / "new" / "bench.json", shown.append)
    record = json.loads((tmp_path / "new" / "bench.json").read_text("utf-8"))
    assert Result(**record["suites"]["gme"][0]).met
    assert {"torch", "numpy"} <= record["environment"]["versions"].keys()
    assert "1 of 1 bars met" in shown[-1] + shown[-2]
    assert "| fast | 2 GB (2–2) | 2 × (1.5–2) |" in markdown(tmp_path / "new" / "bench.json")
