"""The number of tensors like X that a run holds is known before it starts, for every algorithm and optimizer."""

import gc

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from builders import cases, stepped
from every_algorithm import NODES, ON_RING, RING, small_task, start
from mixwise.algorithms import DSGD
from mixwise.network import SimulatedNetwork
from mixwise.parts import entries
from mixwise.policies import HeterogeneityAware
from mixwise.sketch import ExactSketch, GaussianSketch
from mixwise.tasks import ModuleTask
from mixwise.tasks.pass_memory import pass_bytes
from mixwise.training import Training, training
from mixwise.training.row_count import count_rows

HIDDEN = 4000  # d = 132,002: a tensor (m, d) has 4 MB, far more than the blocks in which rows are mixed


# The profiler warns that it keeps the events of one cycle only. There is one; to keep more costs seconds.
pytestmark = pytest.mark.filterwarnings("ignore:Profiler clears events at the end of each cycle")


@pytest.fixture(scope="module", autouse=True)
def little_to_look_through():
    """Makes collecting garbage quick: it does not look through the modules that are loaded."""
    gc.freeze()
    yield
    gc.unfreeze()


def allocated(make, mixings=3) -> int:
    """The peak of a run's first steps in bytes, as torch's allocator sees it."""
    gc.collect()  # else the garbage of an earlier test, freed meanwhile, would be counted as negative
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        training = make()
        stepped(training, mixings * training.local_steps)
    changes = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def check(make, task: ModuleTask, count) -> None:
    unit = NODES * task.layout.dim * task.dtype.itemsize
    expected = max(count.gradients * unit + pass_bytes(task, NODES), count.most * unit)
    # A quarter of a tensor is room for the blocks of columns in which rows are mixed, 0.5 MB each.
    assert allocated(make) == pytest.approx(expected, abs=0.4 * unit), count


@pytest.mark.parametrize("kind", list(entries("algorithm")))
def test_every_algorithm_holds_what_was_counted(kind):
    task = small_task(HIDDEN)
    count = count_rows(lambda short: start(kind, short), NODES, task.layout.dim)
    check(lambda: start(kind, task), task, count)


OPTIMIZERS = [
    ("SGD", {}, 0), ("SGD", {"momentum": 0.9}, 1), ("Adam", {}, 2), ("Adam", {"amsgrad": True}, 3),
    ("RMSprop", {"momentum": 0.9, "centered": True}, 3), ("NAdam", {}, 2),
]  # fmt: skip


def dsgd(task, name, options, policy=lambda: ON_RING, **more) -> Training:
    make = lambda blocks: getattr(torch.optim, name)(blocks, lr=1e-3, **options)  # noqa: E731
    return Training(task, SimulatedNetwork(RING), policy(), DSGD(), make, **more)


@pytest.mark.parametrize(("name", "options", "remembered"), OPTIMIZERS)
@pytest.mark.parametrize("row_by_row", [False, True])
def test_every_optimizer_holds_what_was_counted(name, options, remembered, row_by_row, monkeypatch):
    task = small_task(HIDDEN)
    count = count_rows(lambda short: dsgd(short, name, options), NODES, 1 << 30 if row_by_row else task.layout.dim)
    assert (count.optimizer, count.gradients) == (remembered, 2 + remembered)
    if row_by_row:  # its temporary tensors are a few rows
        monkeypatch.setattr(training, "LONG", 1)
        assert count.most <= 2 + remembered + 1
    check(lambda: dsgd(task, name, options), task, count)


@cases(
    "policy, local_steps, most",
    (lambda: HeterogeneityAware(3), 1, 2),  # count sketches are taken before and after the step
    (lambda: HeterogeneityAware(3, sketch=GaussianSketch(20)), 1, 3),  # a copy of X
    (lambda: HeterogeneityAware(3), 4, 3),
)
def test_observing_updates_costs_a_copy_or_nothing(policy, local_steps, most):
    task = small_task(HIDDEN)
    run = lambda own: dsgd(own, "SGD", {}, policy, local_steps=local_steps)  # noqa: E731
    count = count_rows(run, NODES, task.layout.dim)
    assert count.most == most
    check(lambda: run(task), task, count)


def test_whole_updates_replace_the_copy():
    exact = lambda: HeterogeneityAware(3, sketch=ExactSketch())  # noqa: E731
    count = count_rows(lambda short: dsgd(short, "SGD", {}, exact), NODES, 1000)
    assert count.most == 4  # X, G, a copy of X, and the update


def test_a_policy_that_observes_rarely_is_counted_when_it_observes():
    """At its first look nothing is remembered yet; at mixing 1000 all is."""

    class Rarely(HeterogeneityAware):
        looked = []

        def plan(self, round, state, network):
            self.looked.append((round.t, bool(round.sums) or round.X is not None))
            return super().plan(round, state, network)

    count_rows(lambda short: dsgd(short, "SGD", {}, lambda: Rarely(1000)), NODES, 1000)
    assert Rarely.looked == 2 * [(0, True), (1, False), (1000, True)]  # in both rehearsals


def test_blocks_of_columns_and_precision():
    task = small_task(HIDDEN, group_of=lambda name, p: int(p.ndim < 2), dtype=torch.float64)

    def adam(own):
        groups = lambda blocks: torch.optim.Adam([{"params": [block]} for block in blocks])  # noqa: E731
        return Training(own, SimulatedNetwork(RING), ON_RING, DSGD(), groups)

    count = count_rows(adam, NODES, task.layout.dim, groups=task.layout.groups, dtype=torch.float64)
    assert count.optimizer == 2
    assert count.most > 4  # float64 has no fused kernel
    check(lambda: adam(task), task, count)


def test_stacked_passes_are_counted_for_all_nodes():
    task = small_task(HIDDEN, gradients="stacked")
    count = count_rows(lambda short: dsgd(short, "SGD", {}), NODES, task.layout.dim)
    check(lambda: dsgd(task, "SGD", {}), task, count)
