"""Two methods compared seed by seed.

A seed fixes the data, its partition, the start and the graph of a run, so two methods with the same seed share most of
their luck. The differences d_s = a_s − b_s over the seeds vary less than a and b do, and they are what is tested:

    d̄ ± t · sd(d) / √n     the 95 % interval of the mean difference, with Student's t of n − 1 degrees of freedom
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

ENOUGH_SEEDS = 5  # for a test: of fewer differences, the standard deviation is a rough estimate


@dataclass(frozen=True)
class Paired:
    """The differences a − b of a metric over the seeds that both methods have.

    Attributes:
        seeds: n, how many they are.
        mean: d̄.
        half: half the width of the 95 % interval of the mean; None for a single seed.
        wins, losses: the seeds on which a is better, and on which b is.
        p: the p-value of the paired t-test, two-sided; None for fewer than 5 seeds.
    """

    seeds: int
    mean: float
    half: float | None
    wins: int
    losses: int
    p: float | None

    @property
    def sweeps(self) -> bool:
        """Whether one method is better on every seed, and these are 6 or more: a sign test has p = 2^(1 − n) < 0.05."""
        return self.seeds >= 6 and self.seeds in (self.wins, self.losses)

    @property
    def clear(self) -> bool:
        """Whether the difference is not due to chance: the interval excludes 0, or one method is always better."""
        return self.sweeps or (self.half is not None and abs(self.mean) > self.half)

    def text(self, percent: bool = False) -> str:
        """The difference in one line.

        >>> paired({0: 0.7, 1: 0.72}, {0: 0.6, 1: 0.64}, higher=True).text(percent=True)
        '+9.0 points [-3.7, 21.7], better on 2 of 2 seeds'
        """
        unit, form = (100.0, ".1f") if percent else (1.0, ".3g")
        points = " points" if percent else ""
        ends = () if self.half is None else (unit * (self.mean - self.half), unit * (self.mean + self.half))
        interval = f" [{', '.join(f'{end:{form}}' for end in ends)}]" if ends else ""
        test = "" if self.p is None else f", p {p_value(self.p)}"
        return f"{unit * self.mean:+{form}}{points}{interval}, better on {self.wins} of {seeds(self.seeds)}{test}"


def paired(a: Mapping[int, float], b: Mapping[int, float], *, higher: bool) -> Paired | None:
    """Compare the values of two methods by seed; None if they share no seed. `higher` says whether more is better."""
    shared = [seed for seed in a if seed in b]
    if not shared:
        return None
    differences = np.array([a[seed] - b[seed] for seed in shared])
    n, mean = len(differences), float(differences.mean())
    better = differences if higher else -differences
    half = p = None
    if n > 1:
        from scipy.special import stdtr, stdtrit  # Student's t; `scipy.stats` takes much longer to import

        error = float(differences.std(ddof=1)) / math.sqrt(n)
        half = float(stdtrit(n - 1, 0.975)) * error
        if n >= ENOUGH_SEEDS:  # equal differences are certain, and no difference is none
            p = 2 * float(stdtr(n - 1, -abs(mean) / error)) if error else float(mean == 0)
    return Paired(n, mean, half, int((better > 0).sum()), int((better < 0).sum()), p)


def seeds(count: int) -> str:
    """A number of seeds in words."""
    return f"{count} seed{'s' * (count != 1)}"


def p_value(p: float) -> str:
    """A p-value as an equation.

    >>> p_value(0.0312), p_value(1e-9)
    ('= 0.031', '< 0.001')
    """
    return f"= {p:.2g}" if p >= 0.001 else "< 0.001"
