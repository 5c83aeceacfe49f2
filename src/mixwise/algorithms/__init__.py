"""Algorithms: what is computed and mixed. With which weights is a policy's affair."""

from mixwise.algorithms.base import Algorithm
from mixwise.algorithms.decoupled import DecoupledDSGD
from mixwise.algorithms.dsgd import DSGD

__all__ = ["DSGD", "Algorithm", "DecoupledDSGD"]
