"""STL-FW: sparse topologies learned from the data by Frank-Wolfe (Le Bars, Bellet, Tommasi, Lavoie, Kermarrec, 2023).

    minimize    g(W) = (1/n) ‖Wᵀ Π − J Π‖²_F + (λ/n) ‖W − J‖²_F      over all doubly stochastic W,

Π (n, classes) the label proportions of the nodes. The paper averages by W X, we by Wᵀ X (docs/notation.md): our W is
the transpose of theirs, and the regularizer does not mind. Since WᵀJ = J, the first term is (1/n) Tr(Wᵀ Γ W) with Γ the
Gram matrix of the centered rows of Π: the gradient mixing error. So the same method learns a topology from the Gram
matrix of the nodes' updates (`topology_from_gram`).

Frank-Wolfe starts at W = I. A step finds the permutation matrix P of least ⟨∇g(W), P⟩, an assignment problem, and goes
from W toward P as far as g falls, which is known in closed form. So after l steps W is a mean of I and l permutations,
every node sends to at most l others and hears at most l others, and

    g(W) ≤ 16 / (l + 2) · (λ + Tr Γ / n),

because g(J) = 0 and the curvature of g over doubly stochastic matrices, 2 max (1/n)(‖Dᵀ Π_c‖² + λ ‖D‖²) with
‖Dᵀ Π_c‖² ≤ 4 Tr Γ and ‖D‖²_F ≤ 2n, is at most 8 Tr Γ / n + 4λ.
"""

from __future__ import annotations

import math
import operator

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.mixing.gme import scaled_gram
from mixwise.mixing.matrix import FloatArray, MixingMatrix
from mixwise.mixing.metrics import gram_matrix


def learn_topology(
    proportions: npt.ArrayLike, steps: int, regularization: float = 0.1, *, allowed: Graph | None = None
) -> MixingMatrix:
    """A doubly stochastic W with at most `steps` neighbors each way whose neighborhoods look like the whole data set.

    Args:
        proportions: Π (n, classes), the share of each label in a node's data; rows sum to 1.
        steps: how many permutations may be added to the identity; the budget of neighbors.
        regularization: λ ≥ 0 of the paper: how much full averaging counts beside the labels.
        allowed: which arcs there may be; by default all. The bound of the file's head holds without it only.

    Returns:
        W on the (directed) graph of its non-zero weights. `minimize_gme(gram, W.graph)` can fit the weights further.

    >>> W = learn_topology([[1, 0], [1, 0], [0, 1], [0, 1]], steps=1)     # two labels: pairs of unlike nodes
    >>> print((W.to_dense().T @ np.array([[1, 0], [1, 0], [0, 1], [0, 1]])).tolist()[0])
    [0.5, 0.5]
    """
    shares = np.asarray(proportions, dtype=np.float64)
    if shares.ndim != 2 or not len(shares):
        raise MixingError(f"expected one row of label shares per node, (n, classes); got shape {shares.shape}")
    wrong = ~(np.isfinite(shares).all(axis=1) & (shares >= 0).all(axis=1) & (np.abs(shares.sum(axis=1) - 1) <= 1e-6))
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise MixingError(
            f"the label shares of node {i} are {shares[i].tolist()}; they are non-negative and sum to 1: "
            f"divide counts by their row sums"
        )
    Gamma, scale = scaled_gram(gram_matrix(shares), len(shares))
    _check_regularization(regularization)
    return _frank_wolfe(Gamma, 1.0 if scale == 0 else regularization / scale, steps, allowed)


def topology_from_gram(
    gram: npt.ArrayLike | torch.Tensor, steps: int, regularization: float = 0.1, *, allowed: Graph | None = None
) -> MixingMatrix:
    """The same for a Gram matrix Γ (n, n) of the nodes' centered updates, in place of the label proportions.

    `regularization` λ is in units of the mean diagonal of Γ, as in `minimize_gme`. See `learn_topology` for the rest.
    """
    n = allowed.n if allowed is not None else len(np.asarray(gram, dtype=np.float64))
    Gamma, scale = scaled_gram(gram, n)
    _check_regularization(regularization)
    return _frank_wolfe(Gamma, 1.0 if scale == 0 else regularization, steps, allowed)


def _frank_wolfe(Gamma: FloatArray, penalty: float, steps: int, allowed: Graph | None) -> MixingMatrix:
    """Frank-Wolfe for ⟨W, ΓW⟩ + λ ‖W − J‖²_F, Γ of mean diagonal 1."""
    from scipy.optimize import linear_sum_assignment

    n = len(Gamma)
    if operator.index(steps) < 0:
        raise MixingError(f"steps = {steps}; a node has 0 neighbors or more")
    if allowed is not None and allowed.n != n:
        raise MixingError(f"the graph of allowed arcs has {allowed.n} nodes, but there are {n} nodes of data")
    forbidden = np.zeros((n, n), dtype=bool)
    if allowed is not None:
        forbidden[:] = True
        forbidden[allowed.pattern.rows, allowed.pattern.cols] = False
    W = np.eye(n)
    for _ in range(steps):
        slope = Gamma @ W + penalty * (W - 1 / n)  # half of the gradient
        D = -W
        # The loops are always allowed, so there is always an assignment.
        D[linear_sum_assignment(np.where(forbidden, np.inf, slope))] += 1
        descent = -float(np.vdot(slope, D))
        curvature = float(np.vdot(D, Gamma @ D)) + penalty * float(np.vdot(D, D))
        if descent <= 1e-14 * n * (1 + penalty) or curvature <= 0:
            break  # the optimum, to rounding
        W = (W + min(1.0, descent / curvature) * D).clip(min=0)
    return MixingMatrix.from_dense(W, tolerance=1e-9)


def _check_regularization(regularization: float) -> None:
    if not (math.isfinite(regularization) and regularization >= 0):
        raise MixingError(f"regularization = {regularization}; λ is a finite number, 0 or larger")
