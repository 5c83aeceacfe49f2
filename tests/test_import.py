"""Importing mixwise is light: slow packages are loaded where they are used."""

import json
import os
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
from mixwise import *
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


@pytest.mark.parametrize("after", ["mixwise", "public packages", "minimize_gme", "optimal_gap"])
def test_neither_imports_nor_solvers_load_anything_heavy_or_change_global_state(loaded, after):
    """CVXPY is an oracle for tests: it is not needed for training."""
    assert {"mixwise.mixing", "mixwise.policies", "mixwise.graphs", "mixwise.sketch"} <= set(PUBLIC)
    assert loaded[after] == []


@pytest.mark.parametrize("name", ["mixwise", *PUBLIC])
def test_all_that_is_promised_is_there(name):
    module = __import__(name, fromlist=["*"])
    promised = getattr(module, "__all__", [])
    assert len(set(promised)) == len(promised)
    for attribute in promised:
        assert hasattr(module, attribute), attribute


# --- the command line ---
SLOW = ("torch", "numpy", "scipy", "networkx", *HEAVY)
LIGHT = [("--help", ""), ("--version", ""), ("run --help", ""), ("weights --help", ""), ("recipes", "")]
LIGHT += [("", f"mixwise {words}") for words in ("", "run ", "graph t", "weights ring:4 --scheme m")]


@pytest.mark.parametrize(("words", "completed"), LIGHT)
def test_help_lists_and_completion_do_not_wait_for_slow_packages(words, completed):
    code = f"""
import atexit, json, sys
import mixwise.cli
atexit.register(lambda: print("loaded:", json.dumps([name for name in {SLOW!r} if name in sys.modules])))
sys.argv = ["mixwise", *{words.split()!r}]
mixwise.cli.main()
"""
    completing = {
        "COMP_WORDS": completed,
        "COMP_CWORD": str(completed.count(" ")),
        "_MIXWISE_COMPLETE": "complete_bash",
    }
    environment = os.environ | (completing if completed else {})
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    shown, _, loaded = done.stdout.rpartition("loaded: ")
    assert shown
    assert json.loads(loaded) == []


def test_names_are_imported_when_they_are_used():
    assert {*mixwise.__all__, "experiments", "gossip", "seeding"} <= mixwise._HOMES.keys() <= set(dir(mixwise))
    for name, home in mixwise._HOMES.items():
        value, module = getattr(mixwise, name), sys.modules[f"mixwise.{home}"]
        assert value is (module if name == home else getattr(module, name))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = mixwise.nothing
