"""A random choice among policies: HA-DSGD with random sampling of optimized and fixed weights (paper, Appendix B)."""

import math

import pytest

from builders import cases, refused, simulated
from mixwise.errors import MixingError
from mixwise.graphs import ring
from mixwise.mixing import lazy, metropolis_hastings
from mixwise.network import SimulatedNetwork
from mixwise.policies import Alternating, HeterogeneityAware, LearnedTopology, Matchings, RandomChoice, Tree
from mixwise.sketch import ExactSketch
from planning import Planner

N = 8
GRAPH = ring(N)
MH = metropolis_hastings(GRAPH)
SEVERAL = [MH, lazy(MH), lazy(lazy(MH))]


def aware(**options):
    return HeterogeneityAware(sketch=ExactSketch(), **options)  # nothing is drawn but the choice


def start(policy, seed=0):
    return simulated(policy, graph=GRAPH, lr=1e-3, seed=seed)


def steps(policy, count, seed=0):
    training = start(policy, seed)
    return [training.step().plan for _ in range(count)], training


# --- what is drawn ---
@cases(
    "policies, chances",
    ([Matchings(), MH], [0.2, 0.8]),
    ([Matchings(), MH], [0.9, 0.1]),
    ([*SEVERAL, Matchings()], [0.5, 0.3, 0.2, 0.0]),
    (SEVERAL, None),
    ([MH], None),
)
def test_the_share_of_draws_is_the_probability(policies, chances):
    """Within 5 standard errors; nothing is drawn that has no chance."""
    planner, mixings = Planner(RandomChoice(policies, chances), SimulatedNetwork(GRAPH), seed=4), 2000
    drawn = [planner.plan(t).params[0] for t in range(mixings)]
    for k, policy in enumerate(policies):
        others = [W for W in policies if W is not policy]
        count = sum(W not in others if isinstance(policy, Matchings) else W is policy for W in drawn)
        q = 1 / len(policies) if chances is None else chances[k]
        assert abs(count - mixings * q) <= 5 * math.sqrt(mixings * q * (1 - q))


# --- what the parts of a choice do ---


def test_only_a_policy_that_is_drawn_looks():
    training = start(RandomChoice([aware(), MH]), seed=2)
    looks, plans = zip(*((training.driver.looks, training.step().plan) for _ in range(40)), strict=True)
    drawn = [plan.params != (MH,) for plan in plans]
    assert 0 < sum(drawn) < 40
    assert [plan.solve is not None for plan in plans] == drawn
    assert [look is not None for look in looks] == drawn  # known before the step
    assert training.network.traffic.sketches == sum(drawn) * steps(aware(), 1)[1].network.traffic.sketches


@pytest.mark.parametrize("wrap", [lambda part: RandomChoice([part, MH]), lambda part: Alternating([MH, part])])
def test_a_look_that_was_missed_is_made_up_for(wrap):
    """Once per period, at the first mixing from its start on at which the policy is drawn."""
    plans, _ = steps(wrap(aware(period=4)), 40, seed=5)
    expected, looked = [], set()
    for t, plan in enumerate(plans):
        due = plan.params != (MH,) and t // 4 not in looked
        looked |= {t // 4} if due else set()
        expected.append(due)
    assert sum(expected) >= 8
    assert [plan.solve is not None for plan in plans] == expected


def test_the_state_of_a_policy_stays_while_others_are_drawn():
    """Weights learned at the first mixing at which the policy is drawn, whenever that is, serve at all others."""
    learned = LearnedTopology(2, "updates", observe=1, sketch=ExactSketch())
    firsts = set()
    for seed in range(4):
        plans, _ = steps(RandomChoice([learned, MH]), 30, seed)
        assert len({plan.params for plan in plans}) == 2
        firsts.add(next(t for t, plan in enumerate(plans) if plan.params != (MH,)))
    assert len(firsts) > 1


# --- recipes and errors ---


@pytest.mark.parametrize("chances", [[0.5], [0.5, 0.6], [0.5, 0.4], [1.5, -0.5], []])
def test_wrong_probabilities_are_rejected(chances):
    rule = r"probabilities = \[.*\] for 2 policies; give one each, none negative, with sum 1"
    refused(MixingError, rule, RandomChoice, [aware(), MH], chances)


def test_policies_that_provide_different_things_cannot_take_turns():
    refused(MixingError, "must provide the same, but these provide a tree, weights", RandomChoice, [Tree(), MH])
