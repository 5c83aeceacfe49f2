"""STL-FW: sparse topologies learned from the data by Frank-Wolfe (Le Bars, Bellet, Tommasi, Lavoie, Kermarrec, 2023).

    minimize    g(W) = (1/n) ‖Wᵀ Π − J Π‖²_F + (λ/n) ‖W − J‖²_F
    subject to  W𝟏 = 𝟏,  Wᵀ𝟏 = 𝟏,  W ≥ 0,

with Π (n, classes) the label proportions of the nodes. The paper averages by W X, we by Wᵀ X (docs/notation.md), so our
W is the transpose of theirs, and the regularizer is the same. Since WᵀJ = J, the first term is (1/n) Tr(Wᵀ Γ W) with Γ
the Gram matrix of the centered rows of Π: the gradient mixing error. So the same method learns a topology from the Gram
matrix of the nodes' updates (`topology_from_gram`).

Frank-Wolfe starts at W = I. A step finds the permutation matrix P of least ⟨∇g(W), P⟩, an assignment problem, and moves
from W toward P as far as g falls, which has a closed form. After l steps W is a mixture of I and l permutations, every
node sends to and hears at most l others, and

    g(W) ≤ 16 / (l + 2) · (λ + Tr Γ / n),

because g(J) = 0 and the curvature of g over doubly stochastic matrices, 2 max (1/n)(‖Dᵀ Π_c‖² + λ ‖D‖²) with
‖Dᵀ Π_c‖² ≤ 4 Tr Γ and ‖D‖²_F ≤ 2n, is at most 8 Tr Γ / n + 4λ.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.mixing.arrays import as_float64
from mixwise.mixing.matrix import FloatArray, MixingMatrix
from mixwise.mixing.metrics import gram_matrix
from mixwise.mixing.solution import check_regularization, scaled_gram


def learn_topology(
    proportions: npt.ArrayLike, steps: int, regularization: float = 0.1, *, allowed: Graph | None = None
) -> MixingMatrix:
    """A doubly stochastic W with few neighbors per node whose neighborhoods look like the whole data set.

    Args:
        proportions: Π (n, classes), the proportion of each label in a node's data; rows sum to 1.
        steps: the number of permutations mixed with the identity; nodes have at most this many neighbors each way.
        regularization: λ ≥ 0 of the paper, the weight of full averaging relative to the labels.
        allowed: the arcs that may be used; all by default. The bound above holds without it only.

    Returns:
        W on the (directed) graph of its non-zero weights. `minimize_gme(gram, W.graph)` can refine the weights.

    >>> W = learn_topology([[1, 0], [1, 0], [0, 1], [0, 1]], steps=1)     # two labels: pairs of unlike nodes
    >>> print((W.to_dense().T @ np.array([[1, 0], [1, 0], [0, 1], [0, 1]])).tolist()[0])
    [0.5, 0.5]
    """
    Pi = np.asarray(proportions, dtype=np.float64)
    if Pi.ndim != 2 or not len(Pi):
        raise MixingError(f"expected one row of label proportions per node, (n, classes); got shape {Pi.shape}")
    wrong = ~((Pi >= 0).all(axis=1) & (np.abs(Pi.sum(axis=1) - 1) <= 1e-6))  # NaN fails every comparison
    if wrong.any():
        i = int(wrong.argmax())
        found = f"the label proportions of node {i} are {Pi[i].tolist()}"
        raise MixingError(f"{found}; they are non-negative and sum to 1: divide counts by their row sums")
    Gamma, scale = scaled_gram(gram_matrix(Pi), len(Pi))
    check_regularization(regularization)
    return _frank_wolfe(Gamma, 1.0 if scale == 0 else regularization / scale, steps, allowed)


def topology_from_gram(
    gram: npt.ArrayLike | torch.Tensor, steps: int, regularization: float = 0.1, *, allowed: Graph | None = None
) -> MixingMatrix:
    """`learn_topology` for a Gram matrix Γ (n, n) of the nodes' centered updates instead of label proportions.

    `regularization` λ is in units of the mean diagonal of Γ, as in `minimize_gme`.
    """
    gram = as_float64(gram)
    Gamma, scale = scaled_gram(gram, len(gram) if allowed is None else allowed.n)
    check_regularization(regularization)
    return _frank_wolfe(Gamma, 1.0 if scale == 0 else regularization, steps, allowed)


def _frank_wolfe(Gamma: FloatArray, penalty: float, steps: int, allowed: Graph | None) -> MixingMatrix:
    """Frank-Wolfe for ⟨W, ΓW⟩ + λ ‖W − J‖²_F, Γ (n, n) of mean diagonal 1."""
    from scipy.optimize import linear_sum_assignment

    n = len(Gamma)
    if steps < 0:
        raise MixingError(f"steps = {steps}; a node has 0 neighbors or more")
    if allowed is not None and allowed.n != n:
        raise MixingError(f"the graph of allowed arcs has {allowed.n} nodes, but there are {n} nodes of data")
    forbidden = np.full((n, n), allowed is not None)
    if allowed is not None:
        forbidden[allowed.pattern.rows, allowed.pattern.cols] = False
    W = np.eye(n)
    for _ in range(steps):
        slope = Gamma @ W + penalty * (W - 1 / n)  # half of the gradient
        D = -W
        D[linear_sum_assignment(np.where(forbidden, np.inf, slope))] += 1  # loops are allowed, so a P always exists
        descent = -float(np.vdot(slope, D))
        curvature = float(np.vdot(D, Gamma @ D)) + penalty * float(np.vdot(D, D))
        if descent <= 1e-14 * n * (1 + penalty) or curvature <= 0:
            break  # the optimum, up to rounding
        W = (W + min(1.0, descent / curvature) * D).clip(min=0)
    return MixingMatrix.from_dense(W, tolerance=1e-9)
