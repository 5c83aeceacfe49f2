"""The input of GME-opt: Gram matrices are checked, repaired and scaled, sketches are checked."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import MixingError
from mixwise.mixing.matrix import FloatArray
from mixwise.mixing.metrics import Rows
from mixwise.mixing.solution import LARGEST, TIE_BREAK

_REPAIR = 1e-6  # how far from symmetric positive semidefinite Γ may be, as a fraction of its trace
_REMEDY = "pass G @ G.T of centered rows"


def scaled_gram(gram: npt.ArrayLike | torch.Tensor, n: int) -> tuple[FloatArray, float]:
    """Γ (n, n) scaled to mean diagonal 1 and made exactly symmetric positive semidefinite, and the scale."""
    if isinstance(gram, torch.Tensor):
        gram = gram.detach().cpu().double().numpy()  # NumPy has no bfloat16
    Gamma: FloatArray = np.asarray(gram, dtype=np.float64)
    if Gamma.shape != (n, n):
        raise MixingError(f"the Gram matrix has shape {Gamma.shape}, but for {n} nodes it must be ({n}, {n})")
    largest = float(np.abs(Gamma).max())
    if not math.isfinite(largest):
        i, j = np.argwhere(~np.isfinite(Gamma))[0]
        raise MixingError(f"Γ[{i}, {j}] = {Gamma[i, j]}; a Gram matrix is finite: look for NaN in node {i}'s update")
    if largest == 0:
        return Gamma, 0.0
    scale = mean_of(Gamma.diagonal())
    if scale <= 0:
        raise MixingError(f"Tr Γ = {scale * n:.3g}; a Gram matrix has a positive trace: {_REMEDY}")
    Gamma = Gamma / scale
    skew = float((Gamma - Gamma.T).max())  # the difference is antisymmetric: its largest entry is its largest modulus
    if skew > _REPAIR * n:
        difference = f"by up to {skew / n:.1e} · Tr Γ, allowed is {_REPAIR:g}"
        raise MixingError(f"Γ is not symmetric: Γ and Γᵀ differ {difference}; {_REMEDY}")
    if skew > 0:
        Gamma = (Gamma + Gamma.T) / 2
    try:  # positive semidefinite up to a tenth of the tie-break: the program is convex as it is
        shifted = Gamma.copy()
        shifted.flat[:: n + 1] += 0.1 * TIE_BREAK
        np.linalg.cholesky(shifted)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(Gamma)
        if values[0] < -_REPAIR * n:
            smallest = f"{values[0] / n:.1e} · Tr Γ, allowed is {-_REPAIR:g}"
            raise MixingError(f"Γ is indefinite: its smallest eigenvalue is {smallest}; {_REMEDY}") from None
        Gamma = (vectors * values.clip(min=0)) @ vectors.T
    return Gamma, scale


def finite_sketches(sketches: Rows, n: int) -> FloatArray:
    """The sketches (n, k) in float64; raise `MixingError` unless there is one per node, and all are finite."""
    S = sketches.detach().cpu().double().numpy() if isinstance(sketches, torch.Tensor) else sketches
    S = np.asarray(S, dtype=np.float64)
    if S.ndim != 2 or len(S) != n:
        raise MixingError(f"the sketches have shape {S.shape}, but for {n} nodes it must be ({n}, k), one row per node")
    largest = np.abs(S).max(axis=1, initial=0.0)
    if not largest.max() <= LARGEST:  # NaN fails every comparison, and is the largest for argmax
        node = int(largest.argmax())
        rule = f"numbers of a sketch are finite, and at most {LARGEST:g}"
        remedy = f"look for NaN in node {node}'s update, or use smaller steps"
        raise MixingError(f"the sketch of node {node} contains ±{largest[node]:.3g}; {rule}: {remedy}")
    return S


def mean_of(diagonal: FloatArray) -> float:
    """The mean of the diagonal of Γ, whose sum may be too large for a float."""
    largest = float(np.abs(diagonal).max())
    return float((diagonal / largest).sum()) / len(diagonal) * largest if largest else 0.0
