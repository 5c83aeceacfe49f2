"""Sketches: short rows that preserve the inner products of long ones, so that Γ costs k numbers per node, not d."""

from mixwise.sketch.base import Sketch
from mixwise.sketch.count import CountSketch
from mixwise.sketch.exact import ExactSketch
from mixwise.sketch.gaussian import GaussianSketch

__all__ = ["CountSketch", "ExactSketch", "GaussianSketch", "Sketch"]
