"""Policies inside policies draw from random streams that are named by the run's seed and by their path."""

import pytest

import mixwise.policies as pol
from builders import random_rows, simulated
from mixwise.graphs import edge_sample, random_matching, torus
from mixwise.mixing import metropolis_hastings
from mixwise.network import SimulatedNetwork
from mixwise.seeding import stream
from mixwise.sketch import CountSketch, ExactSketch, GaussianSketch
from planning import Planner, observed

GRAPH = torus(4, 4)
MIXINGS = 40
SEED = 3
U = random_rows(16, 30)

DRAWN = {
    "matchings": pol.Matchings(),
    "matcha": pol.Matcha(0.5),
    "edge sampling": pol.EdgeSampling(0.5),
    "random choice": pol.RandomChoice([metropolis_hastings(edge_sample(GRAPH, 0.7, 9, t)) for t in range(30)]),
}
SKETCHED = {  # policies that announce a sketch of the update
    "aware": lambda sketch: pol.HeterogeneityAware(sketch=sketch),
    "aware matchings": lambda sketch: pol.HeterogeneityAwareMatchings(sketch=sketch, objective="updates"),
    "learned topology": lambda sketch: pol.LearnedTopology(2, "updates", sketch=sketch),
}


def planner(policy, seed=SEED):
    return Planner(policy, SimulatedNetwork(GRAPH), seed=seed)


def plans(policy, seed=SEED):
    plan = planner(policy, seed).plan
    return [plan(t, U) for t in range(MIXINGS)]


def rounds(policy, seed=SEED):
    return [plan.params for plan in plans(policy, seed)]


def share_that_differs(pairs):
    return sum(first != second for first, second in pairs) / MIXINGS


@pytest.mark.parametrize("policy", DRAWN.values(), ids=DRAWN)
def test_the_parts_of_a_product_draw_independently(policy):
    """Even if they are one object; of each other, and of the policy on its own."""
    drawn = rounds(pol.Product([policy, policy]))
    assert share_that_differs(drawn) > 0.8  # four matchings that are on or off agree at 1 of 16 mixings by chance
    assert drawn == rounds(pol.Product([policy, policy]))  # but always the same
    channels = ((plan.params, plan.updates) for plan in plans(pol.Decoupled(policy, policy)))
    assert share_that_differs(channels) > 0.8
    alone = rounds(policy)
    for part in (0, 1):
        assert share_that_differs((W, mixing[part]) for (W,), mixing in zip(alone, drawn, strict=True)) > 0.8


def test_every_place_has_a_stream_of_its_own():
    """However deep it is, and whatever is above it."""
    m = pol.Matchings()
    product = [m, pol.Product([m, pol.Alternating([m])]), pol.Alternating([pol.Product([m, m])])]
    product += [pol.Product([pol.Product([m])])]
    seen = rounds(pol.Product(product))
    assert all(len(mixing) == 6 for mixing in seen)
    for i in range(6):
        for j in range(i):
            assert share_that_differs((mixing[i], mixing[j]) for mixing in seen) > 0.9


def test_a_policy_on_its_own_draws_from_the_seed_of_its_context():
    assert [W.graph for (W,) in rounds(pol.Matchings())] == [random_matching(GRAPH, SEED, t) for t in range(MIXINGS)]
    for other in (None, metropolis_hastings(GRAPH), pol.Matchings()):
        policy = pol.HeterogeneityAware(2, sketch=CountSketch(7, seed=5), alternate_with=other)
        assert policy.looks(0, planner(policy).state).sketches == (CountSketch(7, seed=5 + SEED).fresh(0),)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_policy_of_a_run_draws_from_a_stream_of_the_runs_seed(seed):
    training = simulated(pol.Matchings(), graph=GRAPH, seed=seed)
    for t in range(5):
        assert training.step().plan.params[0].graph == random_matching(GRAPH, stream(seed, "policy"), t)


def test_policies_that_are_options_draw_independently():
    m = pol.Matchings()
    policy = planner(pol.HeterogeneityAware(sketch=ExactSketch(), alternate_with=m, graphs=m))
    graphs = lambda t: m.plan(observed(t), policy.state.parts["graphs"], policy.network)  # noqa: E731
    told = [graphs(t).params[0].graph for t in range(MIXINGS)]
    drawn = [(policy.plan(t, U).params[0].graph, graph) for t, graph in enumerate(told)]
    assert all(used == graph for used, graph in drawn[::2])  # its own weights are on the graph of the moment
    assert share_that_differs(drawn[1::2]) > 0.45  # of all mixings, half of which are the other's


@pytest.mark.parametrize("sketch", [CountSketch(5, seed=1), GaussianSketch(5, seed=1)], ids=["count", "gaussian"])
@pytest.mark.parametrize("name", SKETCHED)
def test_nested_sketches_are_independent(name, sketch):
    """Two looks at the same rows, through operators that have nothing in common, and others at every mixing."""
    part = SKETCHED[name](sketch)
    product = planner(pol.Product([part, part, pol.Product([part])]))
    looks = [product.policy.looks(t, product.state) for t in (0, 1)] + [part.looks(0, planner(part).state)]
    taken = [each for look in looks for each in look.sketches]
    assert len(taken) == len(set(taken)) == 7
    assert {(type(each), each.dim) for each in taken} == {(type(sketch), 5)}


def test_an_exact_sketch_has_nothing_to_draw():
    exact = pol.HeterogeneityAware(sketch=ExactSketch())
    assert planner(pol.Product([exact]), seed=0).plan(0, U).params == planner(exact, seed=1).plan(0, U).params
