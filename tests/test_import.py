"""Importing mixwise is light: what only some commands need is loaded where it is used."""

import pkgutil
import subprocess
import sys

import pytest

import mixwise

HEAVY = ("cvxpy", "matplotlib", "plotly", "pandas", "sklearn")
NOT_LIGHT = ("cli", "experiments", "report", "__main__")  # the command line and what it draws with
PUBLIC = [f"mixwise.{m.name}" for m in pkgutil.iter_modules(mixwise.__path__) if m.name not in NOT_LIGHT]


def loaded_by(code: str, names: tuple[str, ...] = HEAVY) -> list[str]:
    """Which of the heavy packages a fresh interpreter has loaded after `code`."""
    code += f"\nimport sys\nprint(*[name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.split()


def test_import_mixwise_loads_nothing_heavy():
    assert loaded_by("import mixwise") == []


def test_no_public_package_loads_anything_heavy():
    assert {"mixwise.mixing", "mixwise.policies", "mixwise.train", "mixwise.graphs", "mixwise.sketch"} <= set(PUBLIC)
    assert loaded_by("\n".join(f"import {name}" for name in PUBLIC)) == []


def test_importing_changes_no_global_state_and_prints_nothing():
    code = """
import random, numpy as np, torch
random.seed(0); np.random.seed(0); torch.manual_seed(0)
before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
settings = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
import mixwise
assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
assert settings == (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_weights_are_optimized_without_the_heavy_packages():
    """CVXPY is an oracle for tests: nobody who trains needs it."""
    code = "import numpy as np\nfrom mixwise import graphs, mixing\n"
    assert loaded_by(code + "mixing.minimize_gme(np.eye(4), graphs.ring(4))") == []
    assert loaded_by(code + "mixing.fastest_mixing(graphs.ring(4))") == []


@pytest.mark.parametrize("name", ["mixwise", *PUBLIC])
def test_all_that_is_promised_is_there(name):
    module = __import__(name, fromlist=["*"])
    promised = getattr(module, "__all__", [])
    assert len(set(promised)) == len(promised)
    for attribute in promised:
        assert hasattr(module, attribute), attribute
