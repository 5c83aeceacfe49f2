"""Policies inside policies draw from random streams that are named by the run's seed and by their path."""

import math

import pytest

import mixwise.policies as pol
from builders import cases, random_rows, refused, simulated
from mixwise.errors import MixingError
from mixwise.graphs import edge_sample, random_matching, ring, torus
from mixwise.mixing import lazy, metropolis_hastings
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
    drawn = [metropolis_hastings(random_matching(GRAPH, SEED, t)) for t in range(MIXINGS)]
    assert [W for (W,) in rounds(pol.Matchings())] == drawn
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


# --- a random choice among policies, as in HA-DSGD with random sampling (paper, Appendix B) ---
N = 8
RING = ring(N)
ON_RING = metropolis_hastings(RING)
SEVERAL = [ON_RING, lazy(ON_RING), lazy(lazy(ON_RING))]


def aware(**options):
    return pol.HeterogeneityAware(sketch=ExactSketch(), **options)  # nothing is drawn but the choice


def start(policy, seed=0):
    return simulated(policy, graph=RING, lr=1e-3, seed=seed)


def steps(policy, count, seed=0):
    training = start(policy, seed)
    return [training.step().plan for _ in range(count)], training


# --- what is drawn ---
@cases(
    "policies, chances",
    ([pol.Matchings(), ON_RING], [0.2, 0.8]),
    ([pol.Matchings(), ON_RING], [0.9, 0.1]),
    ([*SEVERAL, pol.Matchings()], [0.5, 0.3, 0.2, 0.0]),
    (SEVERAL, None),
    ([ON_RING], None),
)
def test_the_share_of_draws_is_the_probability(policies, chances):
    """Within 5 standard errors; nothing is drawn that has no chance."""
    planner, mixings = Planner(pol.RandomChoice(policies, chances), SimulatedNetwork(RING), seed=4), 2000
    drawn = [planner.plan(t).params[0] for t in range(mixings)]
    for k, policy in enumerate(policies):
        others = [W for W in policies if W is not policy]
        count = sum(W not in others if isinstance(policy, pol.Matchings) else W is policy for W in drawn)
        q = 1 / len(policies) if chances is None else chances[k]
        assert abs(count - mixings * q) <= 5 * math.sqrt(mixings * q * (1 - q))


# --- what the parts of a choice do ---


def test_only_a_policy_that_is_drawn_looks():
    training = start(pol.RandomChoice([aware(), ON_RING]), seed=2)
    looks, plans = zip(*((training.driver.looks, training.step().plan) for _ in range(40)), strict=True)
    drawn = [plan.params != (ON_RING,) for plan in plans]
    assert 0 < sum(drawn) < 40
    assert [bool(plan.solves) for plan in plans] == drawn
    assert [look is not None for look in looks] == drawn  # known before the step
    assert training.network.traffic.sketches == sum(drawn) * steps(aware(), 1)[1].network.traffic.sketches


@pytest.mark.parametrize(
    "wrap", [lambda part: pol.RandomChoice([part, ON_RING]), lambda part: pol.Alternating([ON_RING, part])]
)
def test_a_look_that_was_missed_is_made_up_for(wrap):
    """Once per period, at the first mixing from its start on at which the policy is drawn."""
    plans, _ = steps(wrap(aware(period=4)), 40, seed=5)
    expected, looked = [], set()
    for t, plan in enumerate(plans):
        due = plan.params != (ON_RING,) and t // 4 not in looked
        looked |= {t // 4} if due else set()
        expected.append(due)
    assert sum(expected) >= 8
    assert [bool(plan.solves) for plan in plans] == expected


def test_the_state_of_a_policy_stays_while_others_are_drawn():
    """Weights learned at the first mixing at which the policy is drawn, whenever that is, serve at all others."""
    learned = pol.LearnedTopology(2, "updates", observe=1, sketch=ExactSketch())
    firsts = set()
    for seed in range(4):
        plans, _ = steps(pol.RandomChoice([learned, ON_RING]), 30, seed)
        assert len({plan.params for plan in plans}) == 2
        firsts.add(next(t for t, plan in enumerate(plans) if plan.params != (ON_RING,)))
    assert len(firsts) > 1


# --- recipes and errors ---


@pytest.mark.parametrize("chances", [[0.5], [0.5, 0.6], [0.5, 0.4], [1.5, -0.5], []])
def test_wrong_probabilities_are_rejected(chances):
    rule = r"probabilities = \[.*\] for 2 policies; give one each, none negative, with sum 1"
    refused(MixingError, rule, pol.RandomChoice, [aware(), ON_RING], chances)


def test_policies_that_provide_different_things_cannot_take_turns():
    refused(
        MixingError, "must provide the same, but these provide a tree, weights", pol.RandomChoice, [pol.Tree(), ON_RING]
    )
