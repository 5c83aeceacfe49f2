"""Importing mixwise is light: what only some commands need is loaded where it is used."""

import json
import pkgutil
import subprocess
import sys

import pytest

import mixwise

HEAVY = ("cvxpy", "matplotlib", "plotly", "pandas", "sklearn")
NOT_LIGHT = ("cli", "experiments", "report", "__main__")  # the command line and what it draws with
PUBLIC = [f"mixwise.{m.name}" for m in pkgutil.iter_modules(mixwise.__path__) if m.name not in NOT_LIGHT]


# One interpreter does all of it, in this order, and tells after each part which of the heavy packages it has loaded.
CODE = f"""
import json, random, sys, numpy as np, torch
def state():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), \\
        torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
def loaded(after):
    print(json.dumps([after, [name for name in {HEAVY!r} if name in sys.modules]]))
random.seed(0); np.random.seed(0); torch.manual_seed(0)
before = state()
import mixwise
assert state() == before
loaded("mixwise")
{"; ".join(f"import {name}" for name in PUBLIC)}
loaded("public packages")
from mixwise import graphs, mixing
mixing.minimize_gme(np.eye(4), graphs.ring(4))
loaded("minimize_gme")
mixing.optimal_gap(graphs.ring(4))
loaded("optimal_gap")
"""


@pytest.fixture(scope="module")
def loaded():
    """What was loaded after what; nothing else is printed, no global state is changed."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", CODE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(map(json.loads, done.stdout.splitlines()))


def test_import_mixwise_loads_nothing_heavy_and_changes_no_global_state(loaded):
    assert loaded["mixwise"] == []


def test_no_public_package_loads_anything_heavy(loaded):
    assert {"mixwise.mixing", "mixwise.policies", "mixwise.training", "mixwise.graphs", "mixwise.sketch"} <= set(PUBLIC)
    assert loaded["public packages"] == []


def test_weights_are_optimized_without_the_heavy_packages(loaded):
    """CVXPY is an oracle for tests: nobody who trains needs it."""
    assert loaded["minimize_gme"] == []
    assert loaded["optimal_gap"] == []


@pytest.mark.parametrize("name", ["mixwise", *PUBLIC])
def test_all_that_is_promised_is_there(name):
    module = __import__(name, fromlist=["*"])
    promised = getattr(module, "__all__", [])
    assert len(set(promised)) == len(promised)
    for attribute in promised:
        assert hasattr(module, attribute), attribute
