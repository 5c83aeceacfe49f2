"""Algorithms: what is computed and mixed. With which weights is a policy's affair."""

from mixwise.algorithms.base import Algorithm
from mixwise.algorithms.d2 import D2
from mixwise.algorithms.decoupled import DecoupledDSGD
from mixwise.algorithms.dsgd import DSGD

__all__ = ["D2", "DSGD", "Algorithm", "DecoupledDSGD"]
