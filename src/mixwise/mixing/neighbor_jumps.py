"""Where an iteration v ← T(v) is heading, told from its last steps by messages between neighbors (Anderson 1965).

With r_k = v_{k+1} − v_k, the weights α that sum to 1 and make ‖Σ α_k r_k‖ smallest say where the steps would cancel:
v = Σ α_k v_{k+1}. Only the products ⟨r_k, r_j⟩ are needed, which are sums over all nodes.

Legend: m owned nodes; E their entries (`Neighborhoods`); K steps.
"""

from __future__ import annotations

import math

import numpy as np

from mixwise.mixing.matrix import FloatArray
from mixwise.mixing.neighborhoods import Neighborhoods
from mixwise.mixing.tree_sweeps import TreeSweeps

_STEPS = 10  # K
_RIDGE = 1e-8  # of the mean ‖r‖²: steps that are nearly the same do not blow up α
_PROGRESS = 0.9  # a jump is made only if steps are so much shorter than at the last one


class Jumps:
    """The last points of an iteration of ADMM, and jumps ahead.

    Jumps alone could go in circles, so one is made only where the steps are shorter than before any other. Else the
    iteration goes on as it is, and converges.
    """

    def __init__(self, near: Neighborhoods, tree: TreeSweeps) -> None:
        self._near, self._tree = near, tree
        self._points: list[FloatArray] = []
        self._limit = math.inf

    def add(self, v: FloatArray) -> None:
        """One more point of the iteration."""
        self._points = [*self._points[-_STEPS:], v]

    def ahead(self) -> FloatArray | None:
        """The point to go on from instead of the last one, the same on all nodes; None: go on from there."""
        points = np.array(self._points)
        r = np.diff(points, axis=0)
        k, j = np.triu_indices(len(r))
        products = self._tree.total(np.add.reduceat(r[k] * r[j], self._near.starts, axis=1).T)
        R = np.zeros((len(r), len(r)))
        R[k, j] = R[j, k] = products
        length, trace = math.sqrt(R[-1, -1]), float(np.trace(R))
        if not 0 < length < self._limit:
            return None
        self._limit = _PROGRESS * length
        alpha = np.linalg.solve(R / trace + _RIDGE / len(r) * np.eye(len(r)), np.ones(len(r)))
        target: FloatArray = np.zeros_like(points[0])
        for weight, point in zip(alpha / alpha.sum(), points[1:], strict=True):
            target += weight * point  # a matrix product would round differently with other nodes beside them
        return target

    def begin_at(self, v: FloatArray) -> None:
        """The iteration goes on from v, perhaps as another one: its steps so far tell nothing any more."""
        self._points = [v]
