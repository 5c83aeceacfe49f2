"""Policies: with which weights the nodes mix, and when the weights change."""

from mixwise.policies.aware_matchings import HeterogeneityAwareMatchings, auto_policy
from mixwise.policies.chosen_early import LearnedTopology
from mixwise.policies.combined import Alternating, Decoupled, Product, RandomChoice
from mixwise.policies.fixed import Fixed, NoMixing
from mixwise.policies.heterogeneity_aware import HeterogeneityAware
from mixwise.policies.plan import Observation, Plan, Policy, PolicyState, Stateless
from mixwise.policies.sequence import Cycle, EdgeSampling, Matcha, Matchings
from mixwise.policies.tree import FixedTree, HeterogeneityAwareTree

__all__ = [
    "Alternating",
    "Cycle",
    "Decoupled",
    "EdgeSampling",
    "Fixed",
    "FixedTree",
    "HeterogeneityAware",
    "HeterogeneityAwareMatchings",
    "HeterogeneityAwareTree",
    "LearnedTopology",
    "Matcha",
    "Matchings",
    "NoMixing",
    "Observation",
    "Plan",
    "Policy",
    "PolicyState",
    "Product",
    "RandomChoice",
    "Stateless",
    "auto_policy",
]
