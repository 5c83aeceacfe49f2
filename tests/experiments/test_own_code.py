"""A run does not continue after the code of your own that it uses was changed: old and new results would be mixed."""

import importlib
import shutil
import sys

import pytest

import mixwise as mw
from builders import cases, refused, sgd
from mixwise.errors import ConfigError
from mixwise.experiments import run_experiment
from mixwise.experiments.own_code import own_code
from run_folders import planned, run_until

pytestmark = pytest.mark.usefixtures("no_pictures")

HELPERS = """
def shared(x):
    return x + 1
"""
MODULE = '''
"""Policies of one's own."""
from dataclasses import dataclass
from functools import lru_cache

import own_helpers
import torch
from mixwise.mixing import lazy_metropolis_hastings, metropolis_hastings
from mixwise.policies import Fixed
from mixwise.protocols import Plan, Policy, State

LAZY = False
UNUSED = 1


class Base(Policy):
    """What all of them share."""

    def chosen(self, graph):
        return weights_of(graph)


def weights_of(graph):
    # which weights
    return lazy_metropolis_hastings(graph) if LAZY else metropolis_hastings(graph)


@lru_cache
def cached(x):
    return own_helpers.shared(x)


def unused():
    return 5


@dataclass(frozen=True)
class Mine(Base):
    """A policy."""

    rounds: int = 1

    def init(self, context):
        return State(scratch={"W": self.chosen(context.graph)})

    def plan(self, round, state, network):
        cached(round.t)
        return Plan((state.scratch["W"],) * self.rounds)


def task_of(seed):
    import mixwise
    return mixwise.tasks.random_quadratics(4, seed=seed, noise=noise())


def noise():
    return 0.1


make_optimizer = lambda rows: torch.optim.SGD(rows, lr=0.005)
'''


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write the modules, with a change, and import them."""
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(old="", new=""):
        (tmp_path / "code").mkdir(exist_ok=True)
        for name, text in (("own_helpers", HELPERS), ("own_module", MODULE)):
            (tmp_path / "code" / f"{name}.py").write_text(text.replace(old, new) if old else text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("own_module")

    yield write
    for name in ("own_helpers", "own_module"):
        sys.modules.pop(name, None)


CHANGES = {
    "its class": ("* self.rounds", "* self.rounds * 2"),
    "a default": ("rounds: int = 1", "rounds: int = 2"),
    "what it inherits from": ("return weights_of(graph)", "return weights_of(graph) or None"),
    "a function that it calls": ("if LAZY else", "if not LAZY else"),
    "a value that it uses": ("LAZY = False", "LAZY = True"),
    "a function of another module": ("return x + 1", "return x + 2"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_checksum_covers_what_the_code_depends_on(change, write):
    before = own_code(write().Mine())
    assert before is not None
    assert own_code(write(*CHANGES[change]).Mine()) != before
    assert own_code(write().Mine()) == before


@cases(
    "old, new",
    ("# which weights", "# the weights, as they are"),
    ('"""A policy."""', '"""My policy."""'),
    ("UNUSED = 1", "UNUSED = 2"),
    ("return 5", "return 6"),
    ("def unused", "\n\n\ndef unused"),
)
def test_what_does_not_change_results_does_not_count(old, new, write):
    assert own_code(write().Mine()) == own_code(write(old, new).Mine())


def test_code_of_mixwise_and_of_installed_packages_is_not_ones_own():
    for value in (mw.policies.Pairs(), mw.algorithms.DSGD(), mw.tasks.random_quadratics(4), "pairs", sgd, None):
        assert (own_code(value) is None) == (value is not sgd)  # which is a function of the tests


def test_parts_inside_of_parts_and_values_in_closures_count(write):
    def changed(make):
        one, other = (own_code(make(write(*change))) for change in ((), CHANGES["a function that it calls"]))
        return one != other

    assert changed(lambda module: mw.policies.Alternating((module.Mine(), mw.policies.Pairs())))
    assert changed(lambda module: {"policies": [module.Mine]})
    assert changed(lambda module: lambda: module.Mine())
    assert own_code(adding(1)) == own_code(adding(1)) != own_code(adding(2))


def adding(number):
    return lambda x: x + number


# --- recipes ---
VARIANTS = {"mine": {"policy": {"kind": "own_module:Mine"}}, "plain": {"policy": "metropolis-hastings"}}


def recipe():
    return planned(VARIANTS, seeds=(0, 1), steps=4, graph="ring:4", optimizer={"lr": 0.005})


def test_a_resumed_run_with_changed_code_is_rejected_with_the_seeds_that_are_done(write, tmp_path):
    write()
    folder = tmp_path / "run"
    run_until(2, recipe(), folder, variant="mine", seed=1)
    write(*CHANGES["a function that it calls"])
    says = r"the code of the policy of mine is not the one that seeds 0, 1 in .*run ran with; restore it, remove .*mine"
    refused(ConfigError, says, run_experiment, recipe(), folder, resume=True)
    shutil.rmtree(folder / "mine")
    run_experiment(recipe(), folder, resume=True)  # all of it with the new code
    write()
    refused(ConfigError, says, run_experiment, recipe(), folder, resume=True)
    write(*CHANGES["a function that it calls"])
    run_experiment(recipe(), folder, resume=True)


def test_a_method_that_has_not_begun_may_be_changed(write, tmp_path):
    write()
    later = {"plain": VARIANTS["plain"], "mine": VARIANTS["mine"]}
    experiment = planned(later, seeds=(0,), steps=4, graph="ring:4", optimizer={"lr": 0.005})
    run_until(2, experiment, tmp_path / "run", variant="plain")
    write(*CHANGES["its class"])
    run_experiment(experiment, tmp_path / "run", resume=True)


# --- compare ---
def test_compare_covers_what_your_functions_call(write, tmp_path):
    def compared(module, **options):
        methods = {"gossip": "metropolis-hastings", "mine": module.Mine()}
        given = {"optimizer": module.make_optimizer, "steps": 3, "out": tmp_path / "mine", "progress": False}
        return mw.compare(module.task_of, "ring:4", methods, **given, **options)

    compared(write())
    compared(write(), resume=True)
    says = "the code of the task of gossip is not the one that seed 0 in .*mine ran with"
    refused(ConfigError, says, compared, write("return 0.1", "return 0.2"), resume=True)
    says = "the code of the policy of mine is not"
    refused(ConfigError, says, compared, write(*CHANGES["a function that it calls"]), resume=True)
