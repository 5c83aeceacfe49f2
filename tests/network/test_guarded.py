"""Nodes that do not trust their neighbors: what is conserved, how far a hostile node reaches, and what is stopped."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import cases, faulty, normal_rows, random_rows, refused, simulated
from every_algorithm import quadratic_run, runs
from mixwise import algorithms, graphs
from mixwise.errors import ConfigError, TrainingError
from mixwise.experiments.build import prepare
from mixwise.mixing import lazy, metropolis_hastings
from mixwise.network import GuardedNetwork, SimulatedNetwork
from mixwise.network.traffic import AGREEMENT, SKETCHES
from mixwise.policies import AwarePairs, HeterogeneityAware
from mixwise.tasks import QuadraticTask
from mixwise.training import records
from planning import Planner, assert_runs_resume
from run_folders import recipe_run
from strategies import connected_graphs

TORUS = graphs.torus(4, 4)
W = metropolis_hastings(TORUS)
NEAR = sorted(TORUS.neighbors(5))


def guarded(graph=TORUS, robust="none", on_bad="stop", **faults):
    return GuardedNetwork(faulty(graph, 1, **faults) if faults else SimulatedNetwork(graph), robust, on_bad)


def rows_with(node, row, d=6):
    """Normal rows, and another one at this node."""
    X = random_rows(16, d)
    X[node] = row
    return X


# --- what is conserved ---
@settings(max_examples=20, deadline=None)
@given(connected_graphs(2), st.integers(0, 10_000), st.sampled_from([None, torch.bfloat16, torch.int8]))
def test_a_guard_that_trusts_all_mixes_as_the_network_does_at_the_same_bytes(graph, seed, wire):
    X, W = random_rows(graph.n, 70, seed), lazy(metropolis_hastings(graph))  # not J, which is averaged
    plain, guard = SimulatedNetwork(graph, wire_dtype=wire), GuardedNetwork(SimulatedNetwork(graph, wire_dtype=wire))
    torch.testing.assert_close(guard.mix(X, W), plain.mix(X, W), rtol=0, atol=1e-12)
    assert guard.traffic.parameters == 2 * len(graph.edges) * plain.row_bytes(X)
    late = torch.zeros_like(X)
    guard.start_mix(X, W).move(late)
    torch.testing.assert_close(X + late, plain.mix(X, W), rtol=0, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(connected_graphs(3), st.integers(0, 10_000), st.sampled_from([0.0, 0.3]))
def test_clipping_conserves_the_mean_where_nothing_is_clipped_and_is_then_ordinary_gossip(graph, seed, loss):
    """Rows at nearly equal distances: none is beyond 1.5 medians."""
    X = torch.eye(graph.n, dtype=torch.float64) + 0.05 * random_rows(graph.n, graph.n, seed) / graph.n**0.5
    plain = faulty(graph, seed, message_loss=loss) if loss else SimulatedNetwork(graph)
    network = GuardedNetwork(plain, "clip")
    mixed = network.mix(X, metropolis_hastings(graph))
    torch.testing.assert_close(mixed.mean(0), X.mean(0), rtol=0, atol=1e-13)
    plain.begin(0)  # the same messages are lost again
    torch.testing.assert_close(mixed, plain.mix(X, metropolis_hastings(graph)), rtol=0, atol=1e-12)
    assert network.figures()["rows_clipped"] == 0


# --- how far a hostile node reaches ---
@pytest.mark.parametrize("length", [10.0, 1e3, 1e6])
def test_a_hostile_row_moves_a_neighbor_by_less_than_the_radius_and_less_the_longer_it_is(length):
    alone = rows_with(5, 0.0)
    X = rows_with(5, length)
    moved = guarded(robust="clip").mix(X, W)
    for j in NEAR:
        honest = [i for i in TORUS.neighbors(j) if i != 5]
        radius = 1.5 * sorted(float((X[i] - X[j]).norm()) for i in TORUS.neighbors(j))[1]  # of 4, the lower median
        scale = [min(1, radius / float((X[i] - X[j]).norm())) ** 3 for i in honest]
        without = X[j] + sum(0.2 * s * (X[i] - X[j]) for s, i in zip(scale, honest, strict=True))
        shift = float((moved[j] - without).norm())
        assert shift <= 0.2 * radius * (radius / float((X[5] - X[j]).norm())) ** 2 + 1e-10
    far = [j for j in range(16) if j not in (5, *NEAR)]
    torch.testing.assert_close(moved[far], guarded(robust="clip").mix(alone, W)[far])


def test_pairs_know_the_radius_from_sketches_of_all_neighbors_and_keep_it_for_all_rounds():
    """One partner alone says nothing about what is usual; rows that were just averaged would make the radius 0."""
    X = rows_with(5, 1e3, d=300)
    pair = metropolis_hastings(graphs.Graph(16, [(5, NEAR[0]), (0, 3)]))
    network = guarded(robust="clip")
    mixed = network.mix(X, pair)
    assert float((mixed[NEAR[0]] - X[NEAR[0]]).norm()) < 0.02  # 0.5 τ³/‖D‖², τ about 37 and ‖D‖ about 17,000
    torch.testing.assert_close(mixed[[0, 3]], X[[0, 3]].mean(0).expand(2, -1))
    assert network.traffic.sketches == 64 * 64 * X.element_size()
    assert network.figures()["rows_clipped"] == 0.25
    Y = X.clone()
    network.begin(1)
    network.mix(Y, pair, out=Y)
    first = network.traffic.sketches
    network.mix(Y, pair, out=Y)
    assert network.traffic.sketches == first
    network.begin(2)
    network.mix(Y, pair, out=Y)
    assert network.traffic.sketches > first


def distance_to_optimum(robust, hostile):
    """Of the honest nodes after 60 steps on similar quadratics, two nodes being hostile or merely silent."""
    draws = torch.Generator().manual_seed(0)
    A = torch.eye(10) + 0.1 * torch.randn(16, 10, 10, generator=draws)
    task = QuadraticTask(A, 1 + 0.1 * torch.randn(16, 10, generator=draws))
    network = faulty(TORUS, 1, corrupt={hostile: [0, 10]})
    training = simulated(W, task=task, network=network, lr=0.05, robust=robust, on_bad="skip")
    *_, last = records(training, 60, record_every=60, evaluate_every=60)
    return last.values["distance_to_optimum"]


def test_hostile_nodes_do_not_keep_the_others_from_the_optimum():
    silent = distance_to_optimum("none", "nan")
    assert distance_to_optimum("clip", "noise") < 2 * silent
    assert distance_to_optimum("none", "noise") > 10 * silent


# --- what is stopped ---
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_leaves_a_node_is_checked_and_the_node_is_named(value):
    X, network = rows_with(3, value), SimulatedNetwork(TORUS)
    network.begin(7)
    for call in (lambda: network.mix(X, W), lambda: network.average(X), lambda: network.start_mix(X, W)):
        refused(TrainingError, "step 7: node 3 would send NaN or infinity .*nothing was sent.*BatchNorm", call)
    mixed = network.measuring().mix(X, (W,))  # measurements are not checked
    assert int((~mixed.isfinite()).any(dim=1).sum()) == 5  # node 3 and its neighbors


def test_rows_are_checked_after_they_are_rounded_for_the_message():
    X = rows_with(3, 3.4e38, d=100).float()
    network = SimulatedNetwork(TORUS, wire_dtype=torch.bfloat16)
    refused(TrainingError, r"node 3 would send NaN or infinity", network.mix, X, W)
    assert bool(torch.isfinite(X).all())


@pytest.mark.parametrize("node", [0, 5, 15])
def test_a_broken_node_under_a_guard_does_not_blame_its_neighbors(node):
    X = rows_with(node, float("nan"))
    for network in (guarded(robust="clip"), guarded(message_loss=0.1), guarded(robust="clip", corrupt={"noise": [3]})):
        refused(TrainingError, f"node {node} would send NaN or infinity", network.mix, X, W)


def test_a_row_that_would_erase_those_of_its_neighbors_is_stopped():
    """As after one gradient of 1e30, in float32: finite, and finite in every mixture."""
    X = rows_with(3, 5e28).float()
    refused(TrainingError, r"node 3 sent node \d+ a row .*on_bad: skip", SimulatedNetwork(TORUS).mix, X, W)
    refused(TrainingError, r"node 3 sent node \d+ a row .*on_bad: skip", guarded(on_bad="stop").mix, X, W)
    refused(TrainingError, "vanishes", SimulatedNetwork(TORUS).mix, rows_with(3, 1e9).float(), W)
    SimulatedNetwork(TORUS).mix(rows_with(3, 1e4).float(), W)
    SimulatedNetwork(TORUS).mix(torch.full((16, 2), 1e12), W)  # all of them are long: nothing is erased


def test_bad_rows_are_skipped_and_the_others_conserve_their_mean():
    X, honest = random_rows(16, 6), [i for i in range(16) if i != 5]
    network = guarded(on_bad="skip", corrupt={"nan": [5]})
    mixed = network.mix(X, W)
    torch.testing.assert_close(mixed[honest].mean(0), X[honest].mean(0), rtol=0, atol=1e-14)
    kept = W.to_dense()
    kept[range(16), range(16)] += kept[5]
    kept[5, [j for j in range(16) if j != 5]] = 0
    torch.testing.assert_close(mixed[honest], (torch.from_numpy(kept).T @ X)[honest])
    assert network.figures() == {"rows_clipped": 0, "rows_stopped": 4}
    network.network.hostile.kinds.clear()  # the node recovers
    torch.testing.assert_close(network.mix(X, W), SimulatedNetwork(TORUS).mix(X, W), rtol=0, atol=1e-12)


def test_bad_sketches_are_named_or_left_out():
    rows = torch.from_numpy(normal_rows(16, 6))
    for policy in (AwarePairs(1), HeterogeneityAware(objective="parameters")):
        network = guarded(corrupt={"nan": [5]})
        refused(TrainingError, r"node 5 sent node \d+ a row with NaN", Planner(policy, network).plan, 0, rows=rows)
        plan = Planner(policy, guarded(on_bad="skip", corrupt={"nan": [5]})).plan(0, rows=rows)
        if isinstance(policy, AwarePairs):
            assert not plan.params[0].graph.neighbors(5)


def test_a_message_that_cannot_be_left_out_stops_the_run_and_says_so():
    messages = random_rows(16, 3)[TORUS.arcs.senders.tolist()]
    messages[TORUS.arcs.senders == 5] = float("nan")
    says = r"node 5 sent node \d+ a row with NaN.*on_bad cannot leave out a message that all wait for"
    refused(TrainingError, says, guarded(on_bad="skip").exchange, messages, TORUS, cargo=AGREEMENT)


def test_a_node_whose_sketch_is_lost_is_not_blamed_for_a_bad_one():
    """The mean of those that arrive replaces a lost sketch; a bad one is no part of it."""
    network = guarded(on_bad="skip", corrupt={"nan": [5]}, message_loss=0.4)
    network.begin(0)
    for _ in range(20):
        assert bool(torch.isfinite(network.gather(random_rows(16, 6))).all())
    assert network.network.traffic.lost > 50
    assert 5 < network.figures()["rows_stopped"] < 20  # each time that it is not lost


def test_a_node_cannot_draw_all_pairs_to_itself_by_its_claims():
    rows = torch.from_numpy(normal_rows(16, 50))
    rows[5] *= 1e6
    own = rows[TORUS.arcs.senders.tolist()]  # also the order of the receivers
    told = guarded(robust="clip").exchange(own, TORUS, cargo=SKETCHES).rows
    apart = (told - own).norm(dim=1).reshape(16, 4)
    for j in NEAR:
        assert float(apart[j].max()) < 2.001 * float(apart[j].sort().values[1])
    gathered = guarded(robust="clip").gather(rows)
    assert float(gathered[5].norm()) < 2.001 * float(rows.norm(dim=1).median())
    torch.testing.assert_close(gathered[5] / gathered[5].norm(), rows[5] / rows[5].norm())


# --- runs and recipes ---
@pytest.mark.parametrize("corrupt", [{"noise": 1, "nan": 1}, {"flip": 2}, {"dissensus": [1, 4]}])
def test_attacks_repeat_themselves_and_resume(corrupt):
    network = partial(faulty, seed=3, corrupt=corrupt, message_loss=0.2)
    assert_runs_resume(lambda: quadratic_run("dsgd", network, robust="clip", on_bad="skip"), before=3, after=3)


@pytest.mark.parametrize("name", runs())
def test_every_method_that_mixes_rows_runs_with_clipping_and_resumes(name):
    start = lambda: quadratic_run(name, robust="clip", on_bad="skip")  # noqa: E731
    needs = runs()[name][0].needs
    if needs.plan in ("nothing", "a tree") or needs.fixed or not needs.doubly:
        refused(TrainingError, "compares the rows of neighbors", start)
    else:
        assert_runs_resume(start, before=1, after=2)


planned = partial(recipe_run, "steps=4", "graph=torus:4x4")


def test_records_count_what_was_stopped_and_name_the_hostile_nodes():
    run = planned("faults={corrupt: {nan: [3], noise: 1}}", "on_bad=skip", "robust=clip")
    values = [record.values for record in prepare(run, 0)()]
    assert values[-1]["rows_stopped"] == 4 * 4
    assert 0 < values[-1]["rows_clipped"] < 0.5
    assert "3" in values[-1]["hostile"]
    assert "rows_stopped" not in next(iter(prepare(planned(), 0)())).values


@cases(
    "changes, says",
    (["robust=median"], "input should be 'none' or 'clip'"),
    (["on_bad=ignore"], "input should be 'stop' or 'skip'"),
    (["faults={corrupt: {lies: 1}}"], "input should be 'noise'"),
    (["faults={corrupt: {noise: [16]}}"], "different nodes from 0 to 15"),
    (["faults={corrupt: {noise: [1, 1]}}"], "different nodes from 0 to 15"),
    (["faults={corrupt: {noise: 16}}"], "leave at least one honest"),
)
def test_wrong_options_are_one_line(changes, says):
    refused(ConfigError, says, lambda: prepare(planned(*changes), 0))


def test_methods_whose_messages_cannot_be_judged_are_refused():
    for option, value in (("robust", "clip"), ("on_bad", "skip")):
        rule = f"{option}: {value} compares the rows of neighbors, but"
        refused(TrainingError, rule, simulated, W, algorithms.Choco(), TORUS, **{option: value})
    run = simulated(W, algorithms.Choco(), network=faulty(TORUS, corrupt={"noise": 1}))
    refused(TrainingError, "compressed messages cannot mix", run.step)
    refused(TrainingError, "robust = 'no'; choose one of none, clip", guarded, TORUS, "no")


def test_the_averaged_model_is_measured_although_node_0_is_hostile():
    changes = ["graph=ring:6", "steps=2", "robust=clip", "faults={corrupt: {noise: [0]}}"]
    *_, last = prepare(recipe_run(*changes, recipe="digits", variant="dsgd"), seed=0)()
    assert last.values["accuracy_average_model"] > 0
