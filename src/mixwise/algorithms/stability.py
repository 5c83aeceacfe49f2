"""When a two-step recursion z² + b(λ) z + c(λ) forgets what it was told: all roots inside the unit disc."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mixwise.errors import MixingError
from mixwise.mixing import MixingMatrix, eigenvalues

Values = npt.NDArray[Any]


def check_roots(
    W: MixingMatrix, b: Callable[[Values], Values], c: Callable[[Values], Values], name: str, rule: str
) -> None:
    """Refuse a W with a root outside of the unit disc for an eigenvalue λ ≠ 1.

    Args:
        W: the matrix.
        b, c: coefficients of the method's characteristic polynomial at an eigenvalue, as the step size goes to 0.
        name: of the method, for the message.
        rule: what must hold and what to do, for the message.
    """
    values = eigenvalues(W)
    others = values[np.abs(values - 1) > 1e-9].astype(complex)
    if others.size == 0:
        return
    half, product = -b(others) / 2, c(others)
    root = np.sqrt(half**2 - product)
    worst = np.maximum(np.abs(half + root), np.abs(half - root))
    if worst.max() >= 1 - 1e-12:
        value = others[int(worst.argmax())]
        value = value.real if value.imag == 0 else value
        raise MixingError(
            f"{name} is not stable with this W: its eigenvalue {value:.4g} gives a root of modulus "
            f"{worst.max():.4g} of {rule}"
        )
