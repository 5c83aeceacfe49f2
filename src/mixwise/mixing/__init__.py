"""Mixing matrices: a checked value, builders, metrics, and the weights that fit the data."""

from mixwise.mixing.gme import GmeProblem, GmeSolution, minimize_gme
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

__all__ = [
    "GmeProblem",
    "GmeSolution",
    "MixingMatrix",
    "consensus_distance",
    "consensus_factor",
    "eigenvalues",
    "gradient_mixing_error",
    "gram_matrix",
    "heterogeneity",
    "minimize_gme",
    "relative_heterogeneity",
    "spectral_gap",
]
