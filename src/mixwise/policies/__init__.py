"""Policies: which weights the nodes mix with, and when the weights change."""

from mixwise.policies.auto import Auto, DCliques
from mixwise.policies.aware_pairs import AwarePairs
from mixwise.policies.choice import PolicyLike, as_policy
from mixwise.policies.combined import Alternating, Decoupled, Product, RandomChoice
from mixwise.policies.edge_coloring import EdgeColoring
from mixwise.policies.fixed import Fixed, NoMixing, Tree
from mixwise.policies.forecast import Forecast, forecast
from mixwise.policies.heterogeneity_aware import HeterogeneityAware
from mixwise.policies.learned_topology import LearnedTopology
from mixwise.policies.pairs import HeterogeneityAwareMatchings, Pairs
from mixwise.policies.sequence import Cycle, EdgeSampling, Matcha, Matchings
from mixwise.protocols import Look, Policy

__all__ = [
    "Alternating", "Auto", "AwarePairs", "Cycle", "DCliques", "Decoupled", "EdgeColoring", "EdgeSampling", "Fixed",
    "Forecast", "HeterogeneityAware", "HeterogeneityAwareMatchings", "LearnedTopology", "Look", "Matcha", "Matchings",
    "NoMixing", "Pairs", "Policy", "PolicyLike", "Product", "RandomChoice", "Tree", "as_policy", "forecast",
]  # fmt: skip
