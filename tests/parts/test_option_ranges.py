"""Ranges of options: a value outside is refused with its name; recipes get the same errors (test_parts.py)."""

import math

import pytest

import mixwise.algorithms as alg
import mixwise.policies as pol
import mixwise.sketch as sk
from builders import refused
from mixwise.errors import ConfigError

NAN, INF = math.nan, math.inf
WRONG = {
    pol.HeterogeneityAware: {
        "period": [0, -2], "smoothing": [1.0, -0.1, NAN], "objective": ["gradients"], "balance": [-1.0, INF],
        "growth": [0.9, NAN], "drop_below": [0.5, -0.1], "tolerance": [2.0], "solver": ["osqp"],
    },
    pol.HeterogeneityAwareMatchings: {"rounds": [0]},
    pol.AwarePairs: {"rounds": [0], "offers": [0], "iterations": [-1]},
    pol.EdgeSampling: {"probability": [2]},
    pol.Matcha: {"budget": [0]},
    pol.Cycle: {"sequence": [[]]},
    alg.QuasiGlobalMomentum: {"beta": [1.0, NAN], "mu": [-0.1]},
    alg.QuasiGlobalAdam: {"betas": [(0.9, 1.0)]},
    alg.DecentLaM: {"beta": [1.2]},
    alg.TopK: {"share": [0.0, 1.5, NAN]},
    alg.Quantize: {"bits": [0, 17]},
    alg.Choco: {"gamma": [0.0, 1.1, NAN]},
    sk.CountSketch: {"dim": [0, -3, 2.0, "7", True, None], "seed": [1.5]},
    sk.GaussianSketch: {"dim": [0, -3, 2.0, "7", True, None], "seed": [1.5]},
}  # fmt: skip
CASES = [(part, name, value) for part, wrong in WRONG.items() for name, values in wrong.items() for value in values]


@pytest.mark.parametrize(("part", "name", "value"), CASES)
def test_a_value_out_of_range_is_refused(part, name, value):
    refused(ConfigError, rf"^{name}(\.1)? = .*: (input should be|.*valid)", part, **{name: value})
