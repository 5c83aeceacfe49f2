"""Mixing matrices: a validated value, builders, metrics, and weights that fit the data."""

from mixwise.mixing.averaging import base_graph, exact_average
from mixwise.mixing.gap_weights import optimal_gap
from mixwise.mixing.gme import GmeProblem, minimize_gme
from mixwise.mixing.matcha_weights import MatchaWeights, matcha
from mixwise.mixing.matrix import MixingMatrix
from mixwise.mixing.metrics import (
    consensus_distance,
    consensus_factor,
    eigenvalues,
    gradient_mixing_error,
    gram_matrix,
    heterogeneity,
    relative_heterogeneity,
    spectral_gap,
)
from mixwise.mixing.placement import Placement, distinct_placements, optimize_placement, search_placement
from mixwise.mixing.solution import GmeSolution, SolveStatus
from mixwise.mixing.topology_learning import learn_topology, topology_from_gram
from mixwise.mixing.weights import (
    clique_averaging,
    from_edge_weights,
    full_averaging,
    lazy,
    lazy_metropolis_hastings,
    max_degree,
    metropolis_hastings,
    symmetrized,
    uniform,
    uniform_sender,
)

__all__ = [
    "GmeProblem", "GmeSolution", "MatchaWeights", "MixingMatrix", "Placement", "SolveStatus", "base_graph",
    "clique_averaging", "consensus_distance", "consensus_factor", "distinct_placements", "eigenvalues",
    "exact_average", "from_edge_weights", "full_averaging", "gradient_mixing_error", "gram_matrix", "heterogeneity",
    "lazy", "lazy_metropolis_hastings", "learn_topology", "matcha",
    "max_degree", "metropolis_hastings", "minimize_gme", "optimal_gap", "optimize_placement", "relative_heterogeneity",
    "search_placement", "spectral_gap", "symmetrized", "topology_from_gram", "uniform", "uniform_sender",
]  # fmt: skip
