"""A random choice among policies: HA-DSGD with random sampling of optimized and fixed weights (paper, Appendix B)."""

import math

import pytest
import torch

from mixwise.algorithms import DSGD
from mixwise.errors import ConfigError, MixingError
from mixwise.experiments.build import prepare
from mixwise.experiments.recipe import load_recipe, plan_experiment
from mixwise.graphs import ring, spanning_tree
from mixwise.mixing import lazy, metropolis_hastings
from mixwise.network import SimulatedNetwork
from mixwise.policies import (
    Alternating,
    Fixed,
    HeterogeneityAware,
    LearnedTopology,
    Matchings,
    Product,
    RandomChoice,
    Tree,
)
from mixwise.sketch import ExactSketch
from mixwise.tasks import random_quadratics
from mixwise.training import Training

N = 8
GRAPH = ring(N)
MH = metropolis_hastings(GRAPH)


def aware(**options):
    return HeterogeneityAware(sketch=ExactSketch(), **options)  # nothing is drawn but the choice


def start(policy):
    task = random_quadratics(N, seed=1)
    return Training(task, SimulatedNetwork(GRAPH), policy, DSGD(), lambda b: torch.optim.SGD(b, lr=1e-3))


def steps(policy, count):
    training = start(policy)
    return [training.step().plan for _ in range(count)], training


@pytest.mark.parametrize("probability", [0.2, 0.5, 0.9])
def test_the_share_of_draws_is_the_probability(probability):
    draws, mixings = 0, 2000
    policy = RandomChoice([Matchings(GRAPH), MH], [probability, 1 - probability], seed=4)
    for t in range(mixings):
        draws += policy.plan(t, None, SimulatedNetwork(GRAPH)).params != (MH,)
    deviation = math.sqrt(mixings * probability * (1 - probability))
    assert abs(draws - mixings * probability) < 4 * deviation


@pytest.mark.parametrize("chances", [[1.0, 0.0], [0.0, 1.0]])
def test_a_certain_choice_is_the_policy_itself(chances):
    (_, chosen), (_, alone) = (
        steps(policy, 12)
        for policy in (RandomChoice([aware(period=3), MH], chances), [aware(period=3), Fixed(MH)][chances[1] > 0])
    )
    assert torch.equal(chosen.X, alone.X)
    assert chosen.network.traffic == alone.network.traffic  # it observes as often, and no more


def test_only_a_policy_that_is_drawn_observes():
    policy = RandomChoice([aware(), MH], seed=2)
    plans, training = steps(policy, 40)
    drawn = [plan.params != (MH,) for plan in plans]
    assert 0 < sum(drawn) < 40
    assert [plan.solve is not None for plan in plans] == drawn
    assert training.network.traffic.sketches == sum(drawn) * steps(aware(), 1)[1].network.traffic.sketches
    fresh = RandomChoice([aware(), MH], seed=2)
    assert [fresh.observes(t) for t in range(40)] == drawn  # known before the step


@pytest.mark.parametrize(
    "wrap", [lambda part: RandomChoice([part, MH], seed=5), lambda part: Alternating(Fixed(MH), part)]
)
def test_a_look_that_was_missed_is_made_up_for(wrap):
    """Once per period, at the first mixing from its start on at which the policy is drawn."""
    plans, _ = steps(wrap(aware(period=4)), 40)
    expected, looked = [], set()
    for t, plan in enumerate(plans):
        due = plan.params != (MH,) and t // 4 not in looked
        looked |= {t // 4} if due else set()
        expected.append(due)
    assert sum(expected) >= 8
    assert [plan.solve is not None for plan in plans] == expected


def test_the_state_of_a_policy_stays_while_others_are_drawn():
    """Weights that were chosen once serve whenever it is drawn again."""
    plans, _ = steps(RandomChoice([LearnedTopology(2, looks=1, sketch=ExactSketch()), MH]), 30)
    used = {plan.params for plan in plans}
    assert len(used) == 2


@pytest.mark.parametrize("before", [1, 5, 12])
def test_a_resumed_run_goes_on_with_the_same_bits(before):
    def policy():
        choice = RandomChoice([aware(period=3, smoothing=0.5), Matchings(GRAPH), lazy(MH)], [0.5, 0.3, 0.2], seed=1)
        return Product(choice, Fixed(MH))

    training, resumed = start(policy()), start(policy())
    for _ in range(before):
        training.step()
    resumed.load_state(*training.state())
    for _ in range(10):
        assert training.step().plan.params == resumed.step().plan.params
    assert torch.equal(training.X, resumed.X)


def test_draws_inside_other_policies_are_independent():
    choice = RandomChoice([lazy(MH), MH])
    plans, _ = steps(Product(choice, choice), 200)
    agreed = sum(first == second for first, second in (plan.params for plan in plans))
    assert abs(agreed - 100) < 4 * math.sqrt(50)


def from_recipe(policy):
    base = load_recipe("quadratics")
    changes = [f"policy={policy}", f"graph=ring:{N}", f"variants={next(iter(base.variants))}"]
    (config,) = plan_experiment(base, changes).runs.values()
    return prepare(config, 0).start()


def test_from_a_recipe():
    """Policies by name and by kind; a scheme's name means fixed weights."""
    training = from_recipe(
        "{kind: random, policies: [{kind: heterogeneity-aware}, metropolis-hastings], probabilities: [0.5, 0.5]}"
    )
    plans = [training.step().plan for _ in range(40)]
    drawn = [plan.params != (MH,) for plan in plans]
    assert 0 < sum(drawn) < 40
    assert [plan.solve is not None for plan in plans] == drawn


def test_what_cannot_be_drawn_from_is_refused():
    with pytest.raises(
        MixingError, match=r"probabilities = \[0.5, 0.4\] for 2 policies; one each, none negative, sum 1"
    ):
        RandomChoice([aware(), MH], [0.5, 0.4])
    with pytest.raises(MixingError, match="must give the same, but these give a tree, weights"):
        RandomChoice([Tree(spanning_tree(GRAPH)), MH])
    with pytest.raises(ConfigError, match="unknown key 'weights'; allowed: kind, policies, probabilities"):
        from_recipe("{kind: random, weights: [uniform]}")
