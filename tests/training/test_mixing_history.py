"""Records tell of every kind of mixing since the last record, and of every solve of the run."""

import numpy as np
import pytest
import torch

import mixwise.mixing as mx
from builders import sgd
from mixwise.experiments import load_recipe, load_run, plan_experiment, run_experiment
from mixwise.graphs import ring
from mixwise.policies import Alternating, Fixed, HeterogeneityAware, Product
from mixwise.sketch import ExactSketch
from mixwise.tasks import random_quadratics
from mixwise.training import Record, train

GRAPH = ring(6)
MH = mx.metropolis_hastings(GRAPH)
OF_WEIGHTS = "gradient_mixing_error", "gradient_mixing_error_relative", "relative_heterogeneity", "consensus_factor"


def aware(period: int = 1, **options) -> HeterogeneityAware:
    return HeterogeneityAware(period, sketch=ExactSketch(), **options)


def run(policy, steps: int, record_every: int = 1, **options) -> list[Record]:
    task = random_quadratics(6, dim=5, seed=1)
    return list(train(task, GRAPH, policy, optimizer=sgd(0.005), steps=steps, record_every=record_every,
                      evaluate_every=steps, **options))  # fmt: skip


@pytest.fixture
def failing(monkeypatch):
    """The numbers of the solves that fail; all others succeed."""
    numbers, count = set(), iter(range(10**6))

    def failing_at_numbers(solve):
        def sometimes(self, rows, regularization=0.0):
            if next(count) in numbers:
                return mx.GmeSolution(None, float("nan"), mx.SolveStatus.NOT_CONVERGED, 250, 0.1, 1.0)
            return solve(self, rows, regularization)

        return sometimes

    for name in ("solve", "solve_sketches"):
        monkeypatch.setattr(mx.GmeProblem, name, failing_at_numbers(getattr(mx.GmeProblem, name)))
    return numbers


# --- the weights ---
TURNS = {
    "HA-DSGD": aware(alternate_with=MH),
    "H = 4: solved long before the record": aware(4, alternate_with=MH),
    "in turn": Alternating([aware(), MH]),
    "in turn inside of a product": Product([aware(alternate_with=MH), Fixed(mx.lazy(MH))]),
}


@pytest.mark.parametrize("name", TURNS)
@pytest.mark.parametrize("every", [2, 10])
def test_records_at_odd_steps_show_the_optimized_weights_and_the_others(name, every):
    records = run(TURNS[name], 20, every)
    assert [record.step % 2 for record in records] == [1] * (20 // every)
    blind = run(Product([MH, mx.lazy(MH)]) if name.endswith("product") else MH, 20, every)
    for record, control in zip(records, blind, strict=True):
        values = record.values
        assert values["consensus_factor_unoptimized"] == pytest.approx(control.values["consensus_factor"], rel=1e-12)
        assert all(values[figure] != values[f"{figure}_unoptimized"] for figure in OF_WEIGHTS)
        assert values["gradient_mixing_error"] < values["gradient_mixing_error_unoptimized"]


def test_the_figures_are_those_of_the_last_weights_on_the_gradients_of_the_step():
    """At step 5 of H = 4: weights solved at step 4, and Metropolis-Hastings; X follows X⁺ = Wᵀ(X − lr G)."""
    task = random_quadratics(6, dim=5, seed=1)
    X = task.initial(range(6))
    (record,) = run(aware(4, alternate_with=MH), 6, 6)
    for t in range(6):
        _, G = task.losses_and_gradients(X, range(6), t)
        if t % 4 == 0:
            optimized = mx.minimize_gme(mx.gram_matrix(0.005 * G), GRAPH).W
        W = MH if t % 2 else optimized
        X = torch.from_numpy(W.to_dense().T) @ (X - 0.005 * G)
    for weights, suffix in ((optimized, ""), (MH, "_unoptimized")):
        assert record.values[f"gradient_mixing_error{suffix}"] == pytest.approx(mx.gradient_mixing_error(G, weights))
        assert record.values[f"consensus_factor{suffix}"] == pytest.approx(mx.consensus_factor(weights))


@pytest.mark.parametrize("policy", [MH, aware(), aware(3)], ids=["fixed", "aware", "aware, H = 3"])
def test_weights_of_one_kind_have_one_set_of_figures(policy):
    for record in run(policy, 6, 2):
        assert record.values["consensus_factor"] > 0
        assert not [name for name in record.values if name.endswith("_unoptimized")]


def test_a_record_of_every_step_holds_the_weights_of_that_step():
    for t, record in enumerate(run(aware(alternate_with=MH), 6)):
        is_control = record.values["consensus_factor"] == pytest.approx(mx.consensus_factor(MH), rel=1e-12)
        assert is_control == (t % 2 == 1)
        assert "consensus_factor_unoptimized" not in record.values


# --- the solves ---
def test_failed_solves_are_counted_and_the_worst_status_is_shown(failing):
    """Solves 1 to 9 of 10 fail, at the even steps of 20; the weights of the first one stay."""
    failing.update(range(1, 10))
    records = run(aware(alternate_with=MH), 20, 4)
    assert [record.values["solves"] for record in records] == [2, 4, 6, 8, 10]
    assert [record.values["solves_failed"] for record in records] == [1, 3, 5, 7, 9]
    assert {record.values["solve_status"] for record in records} == {"iteration limit reached"}
    assert len({record.values["consensus_factor"] for record in records}) == 1


def test_the_worst_status_is_that_since_the_last_record(failing):
    failing.add(2)
    statuses = [record.values["solve_status"] for record in run(aware(), 8, 2)]
    assert statuses == ["solved", "iteration limit reached", "solved", "solved"]


def test_a_record_without_a_solve_before_it_has_no_status():
    values = [record.values for record in run(aware(8, alternate_with=MH), 16, 4)]
    assert [("solve_status" in each, each["solves"]) for each in values] == [
        (True, 1),
        (False, 1),
        (True, 2),
        (False, 2),
    ]
    assert all("solve" not in name for record in run(MH, 2) for name in record.values)


def test_all_solves_of_a_mixing_count(failing):
    """Of a product of two policies, the second fails."""
    failing.add(3)
    (record,) = run(Product([aware(), aware()]), 2, 2)
    assert (record.values["solves"], record.values["solves_failed"]) == (4, 1)
    assert record.values["solve_status"] == "iteration limit reached"


def test_local_steps_do_not_hide_a_mixing():
    """τ = 3 and a record every 4 steps: steps 3 and 7 do not mix, but mixings came before them."""
    for record in run(aware(alternate_with=MH), 12, 4, local_steps=3):
        assert np.isfinite(record.values["gradient_mixing_error_relative"])


def test_a_run_names_its_failed_solves(failing, tmp_path):
    """From the solver to the records, the table and the report of a recipe that records odd steps only."""
    failing.update(range(1, 10))
    changes = ["variants=ha-dsgd", "steps=20", "record_every=10", "evaluate_every=10", "seeds=0"]
    summary = run_experiment(plan_experiment(load_recipe("quadratics"), changes), tmp_path)
    note = "ha-dsgd: 9 of 10 solves failed; the weights before stayed in use"
    assert note in summary.notes
    assert note in (tmp_path / "summary.md").read_text("utf-8")
    assert note in (tmp_path / "report.html").read_text("utf-8")
    statuses = [record["solve_status"] for record in load_run(tmp_path).results["ha-dsgd"][0]]
    assert statuses == ["iteration limit reached"] * 2
