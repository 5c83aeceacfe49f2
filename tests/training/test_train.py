"""The loop: the same seed gives the same records, records are JSON, and a run that cannot continue says why."""

import json
import re

import numpy as np
import pytest
import torch

import mixwise.mixing as mx
from builders import random_rows, refused, sgd
from mixwise.errors import DivergedError, TrainingError
from mixwise.graphs import ring
from mixwise.network import SimulatedNetwork
from mixwise.plan import Plan
from mixwise.policies import Fixed, HeterogeneityAware
from mixwise.sketch import CountSketch, ExactSketch
from mixwise.tasks import QuadraticTask, random_quadratics
from mixwise.training import Record, figures, train
from mixwise.training.mixing_history import MixingHistory

GRAPH = ring(6)
MH = mx.metropolis_hastings(GRAPH)


def run(steps: int = 10, *, task=None, policy=None, optimizer=None, **options) -> list[Record]:
    task = task or random_quadratics(6, dim=5, seed=1)
    policy = policy or HeterogeneityAware(2, sketch=CountSketch(4), alternate_with=MH)
    return list(train(task, GRAPH, policy, optimizer=optimizer or sgd(0.005), steps=steps, **options))


# --- determinism ---
def test_the_same_seed_gives_the_same_records_to_the_last_bit():
    first = [record.to_json() for record in run(20)]
    torch.manual_seed(1)  # the global generator has no say, and is left alone
    before = torch.get_rng_state()
    assert [record.to_json() for record in run(20)] == first
    assert torch.equal(torch.get_rng_state(), before)
    other = [record.to_json() for record in run(20, task=random_quadratics(6, dim=5, seed=2))]
    assert all(a != b for a, b in zip(first, other, strict=True))


# --- records ---
def test_records_are_one_line_of_json_each_and_times_are_kept_apart():
    for t, record in enumerate(run(5)):
        line, timings = record.to_json(), json.loads(record.timings_to_json())
        assert not re.search(r"\n|NaN|Infinity", line)
        assert json.loads(line) == {"step": t, **record.values}
        assert timings == pytest.approx({"step": t, **record.seconds, "threads": record.threads}, abs=1e-6)
        assert set(record.seconds) >= {"compute", "plan", "mix"}
        assert all(value >= 0 for value in record.seconds.values())
        assert not set(record.seconds) & set(record.values)


def test_records_of_many_nodes_hold_the_distribution_of_their_disagreement_and_not_p(monkeypatch):
    monkeypatch.setattr(figures, "LARGE", 5)
    X = random_rows(6, 7)
    history = MixingHistory()
    history.add(Plan((MH,)))
    found = figures.mixing_figures(X, None, history, SimulatedNetwork(GRAPH))
    distances = np.sort((X - X.mean(0)).square().sum(1).numpy())
    assert found == {
        "consensus_distance": pytest.approx(distances.mean(), rel=1e-12),
        "disagreement_median": pytest.approx(distances[2], rel=1e-12),
        "disagreement_90th_percentile": pytest.approx(distances[4], rel=1e-12),
        "disagreement_largest": pytest.approx(distances[5], rel=1e-12),
    }


def test_records_hold_the_metrics_of_the_step():
    """Parameters as they are after the mixing, gradients and their mixing error as they were in it."""
    task, W = random_quadratics(6, dim=5, seed=1), MH
    X = task.initial(range(6))
    for t, record in enumerate(run(4, policy=Fixed(W))):
        losses, G = task.losses_and_gradients(X, range(6), t)
        X = torch.from_numpy(W.to_dense().T) @ (X - 0.005 * G)
        expected = {
            "loss": float(losses.mean()),
            "consensus_distance": mx.consensus_distance(X),
            "gradient_mixing_error": mx.gradient_mixing_error(G, W),
            "gradient_mixing_error_before": float((G - G.mean(0)).square().sum()),
            "gradient_mixing_error_relative": mx.gradient_mixing_error(G, W) / float((G - G.mean(0)).square().sum()),
            "heterogeneity": mx.heterogeneity(G),
            "relative_heterogeneity": mx.gradient_mixing_error(G, W) / 6,
            "consensus_factor": mx.consensus_factor(W),
            "distance_to_optimum": float((X - task.optimum).square().sum(1).mean()),
        }
        for name, value in expected.items():
            assert record.values[name] == pytest.approx(value, rel=1e-10), name


def test_bytes_add_up_and_solves_are_recorded_where_they_happened():
    """Per node: 2 messages of 5 numbers of 8 bytes per mixing; sketches of 4 to 5 others, at even ones only."""
    for t, record in enumerate(run(7)):
        assert record.values["bytes_parameters"] == (t + 1) * 2 * 5 * 8
        assert record.values["bytes_sketches"] == (t // 2 + 1) * 5 * 4 * 8
        assert record.values.get("solve_status") == ("solved" if t % 2 == 0 else None)
        assert (record.values.get("solve_iterations", 0) > 0) == (t % 2 == 0)


@pytest.mark.parametrize("name", ["steps", "local_steps", "record_every", "evaluate_every"])
@pytest.mark.parametrize("value", [2.5, 3.0, 0, -1, True, "3"])
def test_counts_are_whole_numbers_of_at_least_1(name, value):
    refused(TrainingError, f"^{name} = {value!r}; give a whole number of at least 1", run, **{name: value})


def test_counts_may_be_numbers_of_numpy():
    assert len(run(np.int64(4), record_every=np.int32(2), evaluate_every=4)) == 2


def test_the_loop_is_lazy():
    """Records come one by one: a run can be watched, or left, while it is under way; what it has yielded stays."""
    going = iter(train(random_quadratics(6), GRAPH, Fixed(MH), optimizer=sgd(0.005), steps=10**9))
    assert [next(going).step for _ in range(3)] == [0, 1, 2]


# --- a run that cannot start or cannot continue ---
def test_the_task_and_the_graph_have_as_many_nodes():
    with pytest.raises(TrainingError, match="the task has 5 nodes, the graph 6; they must be the same"):
        run(1, task=random_quadratics(5))


POLICIES = {
    "fixed": lambda: Fixed(MH),
    "aware": lambda: HeterogeneityAware(sketch=ExactSketch()),
    "aware, smoothed": lambda: HeterogeneityAware(sketch=CountSketch(4), regularization=0.05, smoothing=0.5),
}


@pytest.mark.parametrize("lr", [2.0, 10.0, 1e6])
@pytest.mark.parametrize("policy", POLICIES)
def test_divergence_names_step_and_node(policy, lr):
    """Before the rows overflow, their squares do: then it is Γ that is named, with the node whose update is in it."""
    with pytest.raises(DivergedError, match=r"step \d+: .*node \d.* lower the learning rate \(lr\)") as error:
        run(2000, policy=POLICIES[policy](), optimizer=sgd(lr))
    assert f"step {error.value.step}: " in str(error.value)
    assert f"node {error.value.node}" in str(error.value)
    assert error.value.learning_rate == lr


class Broken(QuadraticTask):
    """Node 4 has a NaN where it is asked for."""

    def __init__(self, where, at=0):
        base = random_quadratics(6, dim=5)
        super().__init__(base.A, base.b)
        self.where, self.at = where, at

    def initial(self, nodes):
        X = super().initial(nodes)
        if self.where == "initial":
            X[4, 2] = float("nan")
        return X

    def losses_and_gradients(self, X, nodes, step):
        losses, G = super().losses_and_gradients(X, nodes, step)
        if step == self.at and self.where != "initial":
            (losses if self.where == "loss" else G)[4] = float("inf")
        return losses, G


def test_parameters_that_are_not_finite_before_the_first_step_are_told_as_such():
    with pytest.raises(TrainingError, match=r"^the initial parameters of node 4 are not finite before .*initialized"):
        run(3, task=Broken("initial"))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_the_node_that_went_wrong_is_named_and_only_after_the_first_step_the_step_size(where, policy):
    """Before its neighbors, or all of them, have heard of it."""
    broken = lambda at: {"task": Broken(where, at), "policy": POLICIES[policy]()}  # noqa: E731
    with pytest.raises(TrainingError, match=rf"^step 0: the {where} of node 4 is not finite, .*check its") as first:
        run(3, **broken(0))
    assert "lower" not in str(first.value)
    rule = r"^step 2: .*node 4 .*(no longer finite|NaN or infinity).* lower the learning rate"
    refused(TrainingError, rule, run, 3, **broken(2))
