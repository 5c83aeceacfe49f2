"""Sketches: short rows that preserve the inner products of long ones, so that Γ costs k numbers per node, not d."""

from mixwise.sketch.base import ExactSketch, Sketch
from mixwise.sketch.random import CountSketch, GaussianSketch

__all__ = ["CountSketch", "ExactSketch", "GaussianSketch", "Sketch"]
