"""Policies inside policies draw from random streams named by their place; at the top level nothing changes."""

import pytest
import torch

from mixwise.algorithms import DSGD
from mixwise.experiments.build import prepare
from mixwise.experiments.recipe import load_recipe, plan_experiment
from mixwise.graphs import random_matching, torus
from mixwise.mixing import metropolis_hastings
from mixwise.network import SimulatedNetwork
from mixwise.policies import (
    Alternating,
    Decoupled,
    EdgeSampling,
    Fixed,
    HeterogeneityAware,
    HeterogeneityAwareMatchings,
    HeterogeneityAwareTree,
    LearnedTopology,
    Matcha,
    Matchings,
    Observation,
    Product,
    RandomChoice,
)
from mixwise.sketch import CountSketch, ExactSketch, GaussianSketch
from mixwise.tasks import random_quadratics
from mixwise.training import Training

GRAPH = torus(4, 4)
MIXINGS = 40
U = torch.randn(16, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

DRAWN = {
    "matchings": lambda: Matchings(GRAPH, seed=3),
    "matcha": lambda: Matcha(GRAPH, 0.5, seed=3),
    "edge sampling": lambda: EdgeSampling(GRAPH, 0.5, seed=3),
    "random choice": lambda: RandomChoice(SEVERAL, seed=3),
}
SEVERAL = [EdgeSampling(GRAPH, 0.7, seed=9).weights(t) for t in range(30)]
SKETCHED = {
    "aware": lambda sketch: HeterogeneityAware(sketch=sketch),
    "aware matchings": lambda sketch: HeterogeneityAwareMatchings(1, sketch=sketch),
    "learned topology": lambda sketch: LearnedTopology(2, sketch=sketch),
    "aware tree": lambda sketch: HeterogeneityAwareTree(sketch=sketch),
}


def plan(policy, t):
    return policy.plan(t, Observation(U, U, U), SimulatedNetwork(GRAPH))


def rounds(policy):
    return [plan(policy, t).params for t in range(MIXINGS)]


def share_that_differs(pairs):
    return sum(first != second for first, second in pairs) / MIXINGS


@pytest.mark.parametrize("name", DRAWN)
def test_the_parts_of_a_product_draw_independently(name):
    """Also if they are one object."""
    part = DRAWN[name]()
    for policies in ((part, part), (DRAWN[name](), DRAWN[name]())):
        drawn = rounds(Product(*policies))
        assert share_that_differs(drawn) > 0.8  # four matchings that are on or off agree at 1 of 16 mixings by chance
        assert drawn == rounds(Product(*policies))  # but always the same
    assert share_that_differs((plan(part, t).params[0], first) for t, (first, _) in enumerate(drawn)) > 0.8


def test_every_place_has_a_stream_of_its_own():
    """However deep it is, and whatever is above it."""
    m = DRAWN["matchings"]()
    product = Product(m, Product(m, Alternating(m)), Alternating(Product(m, m)), Product(Product(m)))
    seen = rounds(product)
    assert all(len(mixing) == 6 for mixing in seen)
    for i in range(6):
        for j in range(i):
            assert share_that_differs((mixing[i], mixing[j]) for mixing in seen) > 0.9


def test_the_channels_of_decoupled_mixing_draw_independently():
    policy = Decoupled(DRAWN["matchings"](), DRAWN["matchings"]())
    plans = [plan(policy, t) for t in range(MIXINGS)]
    assert share_that_differs((each.params, each.updates) for each in plans) > 0.9


def test_alone_a_policy_draws_as_ever():
    """The streams at the top are those of seed and name; so are those of a policy around fixed weights."""
    assert [W.graph for (W,) in rounds(DRAWN["matchings"]())] == [random_matching(GRAPH, 3, t) for t in range(MIXINGS)]
    for other in (None, Fixed(metropolis_hastings(GRAPH)), DRAWN["matchings"]()):
        policy = HeterogeneityAware(2, sketch=CountSketch(7, seed=5), alternate_with=other)
        assert policy.sketches(0) == (CountSketch(7, seed=5).fresh(0),)


def test_what_it_alternates_with_draws_from_a_stream_of_its_own():
    m, exact = DRAWN["matchings"](), ExactSketch()
    policy = HeterogeneityAware(sketch=exact, alternate_with=m, graphs=m)
    drawn = [(plan(policy, t).params[0].graph, plan(policy.graphs, t).params[0].graph) for t in range(MIXINGS)]
    assert all(used == told for used, told in drawn[::2])  # its own weights are on the graph of the moment
    assert share_that_differs(drawn[1::2]) > 0.45  # of all mixings, half of which are the other's


@pytest.mark.parametrize("sketch", [CountSketch(5, seed=1), GaussianSketch(5, seed=1)], ids=["count", "gaussian"])
@pytest.mark.parametrize("name", SKETCHED)
def test_nested_sketches_are_independent(name, sketch):
    """Two looks at the same rows, through operators that have nothing in common, and each one other at every mixing."""
    part = SKETCHED[name](sketch)
    product = Product(part, part, Product(part))
    taken = [each.estimate.sketch.fresh(t) for t in (0, 1) for each in (*product.policies[:2], part)]
    taken += [product.policies[2].policies[0].estimate.sketch.fresh(t) for t in (0, 1)]
    assert len(set(taken)) == len(taken)
    assert {(type(each), each.dim) for each in taken} == {(type(sketch), 5)}


def test_an_exact_sketch_has_nothing_to_draw():
    first = plan(HeterogeneityAware(sketch=ExactSketch()), 0)
    assert plan(Product(HeterogeneityAware(sketch=ExactSketch())), 0).params == first.params


def test_a_run_and_a_resumed_run_draw_the_same():
    """Draws depend on seed, place and t alone, in every process and after every restart."""

    def start():
        policy = Product(DRAWN["matchings"](), Alternating(DRAWN["edge sampling"](), HeterogeneityAware()))
        task = random_quadratics(16, seed=1)
        return Training(task, SimulatedNetwork(GRAPH), policy, DSGD(), lambda b: torch.optim.SGD(b, lr=1e-3))

    training, resumed = start(), start()
    for _ in range(5):
        training.step()
    resumed.load_state(*training.state())
    for _ in range(5):
        assert training.step().plan.params == resumed.step().plan.params
    assert torch.equal(training.X, resumed.X)


def test_in_a_recipe_too():
    base = load_recipe("quadratics")
    changes = ["policy={kind: product, policies: [{kind: matchings}, {kind: matchings}]}", "graph=torus:4x4"]
    (config,) = plan_experiment(base, [*changes, f"variants={next(iter(base.variants))}"]).runs.values()
    training = prepare(config, 0).start()
    assert share_that_differs(training.step().plan.params for _ in range(MIXINGS)) > 0.9
