"""The examples run, each with a small budget, and show what they say they show."""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# Started as several processes, in tests of their own.
NEEDS_PROCESSES = {"torchrun_digits", "with_accelerate", "with_lightning", "with_lora", "with_trainer"}


@pytest.fixture
def example(monkeypatch, capsys):
    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def documented(name):
    """The arguments of the command at the top of an example."""
    (line,) = re.findall(rf"python examples/{name}\.py(.*)", (EXAMPLES / f"{name}.py").read_text("utf-8"))
    return line.split()


def numbers(shown, name, place):
    """The number in this place of the line that starts with a name, of every such line."""
    lines = [line.removeprefix(name) for line in shown.splitlines() if line.startswith(name)]
    assert lines, f"no line starts with {name!r} in\n{shown}"
    return [float(re.findall(r"-?[\d.]+(?:e[-+]\d+)?", line)[place]) for line in lines]


def test_weights_for_a_graph(example):
    assert "32 nodes" in example("weights_for_a_graph", *documented("weights_for_a_graph"))
    shown = example("weights_for_a_graph", "--graph", "ring:12", "--types", 3)
    fitted = numbers(shown, "fitted to the gradients", -1)[0]
    assert fitted <= min(numbers(shown, name, -1)[0] for name in ("Metropolis", "maximum", "optimal", "fitted, and"))


def test_own_model(example):
    shown = example("own_model", "--steps", 60)
    assert numbers(shown, "pairs", -1)[0] > numbers(shown, "Metropolis-Hastings", -1)[0]


def test_compare_own_model(example, tmp_path, no_pictures):
    shown = example("compare_own_model", "--steps", 10, "--seeds", 2, "--out", tmp_path / "moons")
    assert "average (reference)" in shown
    assert "  pairs: " in shown.partition("Accuracy, difference from gossip paired by seed")[2]


def test_compare_policies(example):
    shown = example("compare_policies", "--steps", 16)
    assert numbers(shown, "full averaging", 3) == [0.0]  # nothing left of the disagreement
    assert numbers(shown, "random matchings", -1)[0] < numbers(shown, "Metropolis-Hastings", -1)[0]


def test_own_policy(example):
    shown = example("own_policy", "--steps", 30)
    sent = [numbers(shown, f"when apart by {limit} ", 0)[0] for limit in ("0.03", "0.1", "0.3", "1")]
    assert sent == sorted(sent, reverse=True)
    assert sent[-1] < numbers(shown, "always", 0)[0] / 2


def test_own_algorithm(example):
    shown = example("own_algorithm", "--steps", 100)
    assert numbers(shown, "slow momentum 0.7", 0)[0] < numbers(shown, "D-SGD  ", 0)[0] / 2


def test_topology_from_labels(example):
    shown = example("topology_from_labels", "--nodes", 16, "--neighbors", 2)
    learned = numbers(shown, "learned, 2 neighbors", -1)[0]
    assert learned < numbers(shown, "ring", -1)[0] * 0.7
    assert numbers(shown, "  with fitted weights", -1)[-1] <= learned


def test_push_sum(example):
    shown = example("push_sum", "--steps", 50)
    assert "divided by its mass       4.000, from 4.000 to 4.000" in shown
    assert "DSGD: the weights have kind=" in shown
    assert "PushSum: distance to the optimum" in shown


def test_every_example_is_tested():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} - NEEDS_PROCESSES <= tested
