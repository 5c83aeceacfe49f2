"""Gossip in real processes: equal to the simulation, with unequal data, with states, and with ranks that disagree."""

import contextlib
import copy
import math
import re
import warnings
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

import mixwise as mw
from builders import cases
from mixwise.data import Dataset, NodeBatches, partition
from mixwise.models import seeded
from mixwise.sketch import CountSketch
from mixwise.training import Training, records
from process_pool import Others, error_of, in_processes, run_in_processes
from programs import torchrun
from small_net import Net

pytestmark = [in_processes, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
TIMEOUT = 100.0  # of the network in tests that are not about it


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 6, generator=generator, dtype=torch.float64)
    return Dataset(x, (x @ torch.randn(6, 3, generator=generator, dtype=torch.float64)).argmax(1), 3)


def parts(nodes):
    return partition.by_label(data().y, nodes, labels_per_node=3 if nodes < 3 else 1, seed=0)


def model():
    return seeded(Net, 0).double()


sgd = partial(torch.optim.SGD, lr=0.1)
standing = partial(torch.optim.SGD, lr=0.0)
momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True)


def metropolis(n):
    return mw.policies.Fixed(mw.mixing.metropolis_hastings(mw.graphs.ring(n)))


# name -> policy of n nodes, algorithm, optimizer, options
RUNS = {
    "dsgd": (metropolis, mw.algorithms.DSGD, momentum, {}),
    "ha-dsgd": (lambda n: mw.HeterogeneityAware(period=3), mw.algorithms.DSGD, momentum, {}),
    "auto": (lambda n: mw.policies.Auto(), mw.algorithms.DSGD, momentum, {}),
    "quasi-global": (lambda n: mw.HeterogeneityAware(), mw.algorithms.QuasiGlobalMomentum, sgd, {}),
    "gradient-tracking": (lambda n: mw.HeterogeneityAware(), mw.algorithms.GradientTracking, sgd, {}),
    "d2": (lambda n: mw.HeterogeneityAware(period=2), mw.algorithms.D2, sgd, {}),
    "local-steps": (lambda n: mw.HeterogeneityAware(), mw.algorithms.GradientTracking, sgd, {"local_steps": 3}),
    "overlap": (lambda n: mw.HeterogeneityAware(), mw.algorithms.CombineWhileAdapt, momentum, {"overlap": True}),
    "warm-up": (lambda n: mw.HeterogeneityAware(), mw.algorithms.DSGD, standing, {}),  # U = 0: weights from gradients
    "averaged-buffers": (metropolis, mw.algorithms.DSGD, momentum, {"buffers": "averaged"}),
    "rounded": (metropolis, mw.algorithms.DSGD, momentum, {"wire_dtype": torch.bfloat16}),
}
STEPS = 9


def simulated(world, name):
    """The rows, the buffers of node 1, the last weights and the last record of a simulation."""
    policy, algorithm, optimizer, options = RUNS[name]
    task = mw.tasks.ModuleTask(
        model, data(), parts(world), batch=5, test=data(), gradients="loop", dtype=torch.float64,
        buffers=options.get("buffers", "local")
    )  # fmt: skip
    network = mw.SimulatedNetwork(mw.graphs.ring(world), wire_dtype=options.get("wire_dtype"))
    training = Training(
        task, network, policy(world), algorithm(), optimizer,
        local_steps=options.get("local_steps", 1)
    )  # fmt: skip
    *_, last = records(training, STEPS, record_every=STEPS, evaluate_every=10**9)
    return training, last


def started(rank, world, name):
    policy, algorithm, optimizer, options = RUNS[name]
    own = model()
    made = optimizer([p for p in own.parameters() if p.requires_grad])
    options = dict(options, timeout=TIMEOUT)
    gossip = mw.Gossip(
        own, made, mw.graphs.ring(world), policy(world), None if "overlap" in options else algorithm(), **options
    )
    return own, made, gossip


def train(gossip, rank, world, steps):
    batches, whole = NodeBatches(parts(world), 5, 0), data()
    for t in steps:
        index = batches(rank, t)
        gossip.optimizer.zero_grad()
        nn.functional.cross_entropy(gossip.model(whole.x[index]), whole.y[index]).backward()
        gossip.step()


def real(rank, world, name):
    _, _, gossip = started(rank, world, name)
    train(gossip, rank, world, range(STEPS))
    state = gossip.model.state_dict()
    weights = [W.weights for W in gossip.plan.params]
    return gossip.row.X[0].clone(), state["norm.running_mean"], weights, gossip.metrics()


@pytest.mark.parametrize(
    ("world", "name"), [*((4, name) for name in RUNS), (2, "ha-dsgd"), (3, "quasi-global"), (1, "auto")]
)
def test_a_loop_in_processes_is_the_simulation(world, name):
    results = run_in_processes(world, real, name)
    training, last = simulated(world, name)
    X = torch.stack([row for row, *_ in results])
    torch.testing.assert_close(X, training.X, rtol=1e-12, atol=1e-12)
    means = torch.stack([mean for _, mean, *_ in results])
    expected = torch.stack([training.task.node_module(training.X, i).norm.running_mean for i in range(world)])
    torch.testing.assert_close(means, expected, rtol=1e-12, atol=1e-12)
    assert all(all((a == b).all() for a, b in zip(w, results[0][2], strict=True)) for _, _, w, _ in results)
    figures = results[0][3]
    assert all(told == figures for *_, told in results)
    shared = figures.keys() & last.values.keys()
    assert {"consensus_distance", "gradient_mixing_error", "consensus_factor", "bytes_parameters"} <= shared
    if name == "overlap":
        shared.remove("bytes_parameters")  # the rows of the next mixing have set out already
    for key in shared:
        assert figures[key] == pytest.approx(last.values[key], rel=1e-9, abs=1e-15), key


# --- the start ---
def values_of_rank_0(rank, world):
    own = seeded(Net, rank).double()
    own.norm.running_mean += rank
    own.norm.num_batches_tracked += 7 + rank
    mw.Gossip(own, sgd(own.parameters()), mw.graphs.ring(world), timeout=TIMEOUT)
    return own.state_dict()


def test_all_begin_with_the_parameters_frozen_ones_and_buffers_of_rank_0():
    states = run_in_processes(3, values_of_rank_0)
    for state in states:
        assert all(torch.equal(state[key], states[0][key]) for key in state)
    assert states[2]["norm.num_batches_tracked"] == 7
    assert torch.equal(states[0]["frozen.weight"], model().frozen.weight)


# The error everywhere, and what rank 1 has in place of the others.
DIFFERENT = {
    r"parameter 'weight' has shape \(5, 2\) instead of \(4, 2\)": {"width": 5},
    r"parameter 'weight' has dtype torch.float64 instead of": {"dtype": torch.float64},
    r"parameter 'bias' is frozen instead of trained": {"frozen": True},
    r"the graph is a graph with 3 nodes and 2 edges": {"graph": mw.graphs.chain(3)},
    r"the graph has 4 nodes, but there are 3 processes": {"graph": mw.graphs.ring(4)},
    r"the policy is Fixed instead of HeterogeneityAware": {"policy": metropolis(3)},
    r"the policy, sketch.seed = 5 instead of 0": {"policy": mw.HeterogeneityAware(sketch=CountSketch(100, 5))},
    r"the algorithm is D2 instead of DSGD": {"algorithm": mw.algorithms.D2()},
    r"local_steps is 2 instead of 1": {"local_steps": 2},
    r"wire_dtype is torch.bfloat16 instead of None": {"wire_dtype": torch.bfloat16},
    r"the optimizer is SGD with momentum; use": {"algorithm": mw.algorithms.QuasiGlobalMomentum(), "momentum": 0.5},
}


def differing(rank, world, message):
    options = dict(DIFFERENT[message]) if rank == 1 else {}
    own = nn.Linear(2, options.pop("width", 4), dtype=options.pop("dtype", torch.float32))
    own.bias.requires_grad_(not options.pop("frozen", False))
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1, momentum=options.pop("momentum", 0.0))
    options = {"graph": mw.graphs.ring(3), "policy": mw.HeterogeneityAware(), "timeout": TIMEOUT} | options
    return error_of(mw.Gossip, own, optimizer, **options)


@pytest.mark.parametrize("message", DIFFERENT)
def test_a_rank_that_differs_is_named_on_every_rank_at_once(message):
    for rank, (told, seconds) in enumerate(run_in_processes(3, differing, message)):
        assert re.search(message, told), (rank, told)
        assert rank == 1 or "rank 1" in told
        assert seconds < TIMEOUT / 2


def punctual():
    """A model and its optimizer, made by all ranks before any continues: the first one in a process takes long."""
    own = nn.Linear(2, 2)
    optimizer = sgd(own.parameters())
    torch.distributed.barrier()
    return own, optimizer


# --- unequal data ---
def with_unequal_data(rank, world, sizes, name):
    _, _, gossip = started(rank, world, name)
    first = gossip.row.X.clone()
    with gossip.join():
        train(gossip, rank, world, range(sizes[rank]))
    with gossip.join():  # a second epoch begins where all are
        train(gossip, rank, world, range(sizes[rank]))
    return gossip.t, gossip.steps.tally.taken, gossip.row.X[0] - first[0], gossip.average()["head.weight"]


@pytest.mark.parametrize("name", ["ha-dsgd", "gradient-tracking", "local-steps", "overlap", "auto"])
@pytest.mark.parametrize("sizes", [(2, 5, 3), (4, 0, 1)])
def test_ranks_that_have_run_out_keep_mixing(name, sizes):
    results = run_in_processes(3, with_unequal_data, sizes, name)
    local = RUNS[name][3].get("local_steps", 1)
    mixings = -(-max(sizes) // local)  # of an epoch: the last local steps are mixed as well
    for rank, (t, taken, moved, average) in enumerate(results):
        assert (t, taken) == (2 * mixings, 2 * sizes[rank])
        assert moved.norm() > 0.01  # also of a rank without data: it hears the others
        assert torch.equal(average, results[0][3])


def scheduled(rank, world, follows):
    """The learning rates at the end of each epoch of a rank with rank + 1 batches, and what it was warned of."""
    own = nn.Linear(2, 1)
    optimizer = sgd(own.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    options = {"scheduler": scheduler} if follows else {}
    gossip, rates = mw.Gossip(own, optimizer, mw.graphs.ring(world), timeout=TIMEOUT, **options), []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            with gossip.join():
                for _ in range(rank + 1):
                    gossip.step()
                    if not follows:
                        scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
    return rates, [str(warning.message) for warning in told]


def test_a_schedule_follows_the_run_on_a_rank_that_has_run_out():
    results = run_in_processes(3, scheduled, True)
    assert all(found == results[0] for found in results)
    rates, told = results[0]
    assert rates == pytest.approx([0.05 * (1 + math.cos(math.pi * step / 20)) for step in (3, 6)])
    assert told == []


def test_rank_0_warns_of_learning_rates_that_differ():
    (_, told), *others = run_in_processes(3, scheduled, False)
    assert [others_told for _, others_told in others] == [[], []]
    (warning,) = told
    assert re.match(
        r"the learning rates differ: 0.099\d* on rank 0, 0.097\d* on rank 1, 0.094\d* on rank 2; if", warning
    )


def conserved(rank, world):
    """D-SGD on a common linear loss: each step moves a node by −lr, and mixing keeps the sum over the nodes."""
    own = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    gossip = mw.Gossip(own, torch.optim.SGD(own.parameters(), lr=0.5), mw.graphs.ring(world), timeout=TIMEOUT)
    first = own.weight.item()
    with gossip.join():
        for _ in range(rank * 2):
            gossip.optimizer.zero_grad()
            own.weight.sum().backward()
            gossip.step()
    return own.weight.item() - first


def test_nothing_of_the_updates_gets_lost_when_ranks_run_out():
    moved = run_in_processes(4, conserved)
    assert sum(moved) == pytest.approx(-0.5 * (0 + 2 + 4 + 6), abs=1e-12)


def one_fails(rank, world):
    _, _, gossip = started(rank, world, "ha-dsgd")

    def loop():
        with gossip.join():
            train(gossip, rank, world, range(2))
            if rank == 2:
                raise ZeroDivisionError("of the user")
            train(gossip, rank, world, range(2, 4))

    try:
        return error_of(loop)
    except ZeroDivisionError:
        return "own", 0.0


def test_an_error_inside_join_is_told_to_the_others_at_once():
    results = run_in_processes(3, one_fails)
    assert results[2][0] == "own"
    for told, seconds in results[:2]:
        assert re.search(r"rank 2 has left the join block with an error before mixing 2; see its output", told)
        assert seconds < TIMEOUT / 2


# --- calls that not all ranks make ---
quickly = mock.patch.multiple("mixwise.gossip.call_watch", _TICK=0.1, _LATE=0.4)


def lonely_call(rank, world, name, odd):
    """One rank makes a call that the others do not make; they are far from their timeout."""
    own, optimizer = punctual()
    gossip = mw.Gossip(own, optimizer, mw.graphs.ring(world), timeout=TIMEOUT, overlap=name == "average")

    def loop():
        for step in range(20):
            gossip.step()
            if step == 5 and rank == odd:
                getattr(gossip, name)()

    with quickly:
        return error_of(loop)


@pytest.mark.parametrize(("name", "odd"), [("metrics", 0), ("average", 2)])
def test_a_call_that_one_rank_makes_alone_is_named_on_every_rank(name, odd):
    others = ", ".join(str(rank) for rank in range(4) if rank != odd)
    for told, seconds in run_in_processes(4, lonely_call, name, odd):
        assert re.search(rf"rank {odd} calls gossip.{name}\(\) \(test_gossip_processes.py:\d+\) while rank", told)
        assert re.search(r"call(s)? gossip.step\(\).*take gossip.\w+\(\) out of the `if`", told)
        assert set(re.findall(r"\d", told.partition(" while ")[2].partition(" call")[0])) <= set(others)
        assert seconds < TIMEOUT / 2


def with_fewer_batches(rank, world, leaves):
    """Rank 1 has 2 batches, the others 3; it leaves the group, or is busy with something else."""
    (own, optimizer), others = punctual(), Others()
    gossip = mw.Gossip(own, optimizer, mw.graphs.ring(world), "metropolis-hastings", timeout=TIMEOUT)

    def loop():
        for step in range(3 if rank != 1 else 2):
            gossip.network.transport.timeout = TIMEOUT if step < 2 or leaves else 2.0
            gossip.step()

    with quickly:
        told = error_of(loop)
        others.tell(rank)
        if not leaves:
            others.wait_for(0, 2)
        elif rank == 1:
            torch.distributed.destroy_process_group()
        return told


@cases(
    "leaves, expected",
    (True, r"rank 1 has left the process group after 2 collective calls while ranks? \d(, \d)? calls? gossip.step"),
    (False, r"rank 1 (did not answer within 2 s.*last seen at test_gossip_processes.py:\d+, after \d coll|is missing)"),
)
def test_without_join_a_rank_that_has_finished_is_named(leaves, expected):
    first, second, third = run_in_processes(3, with_fewer_batches, leaves)
    assert second[0] is None
    for told, seconds in (first, third):
        assert re.search(rf"step 2: {expected}", told), told
        assert seconds < TIMEOUT / 2
    assert "with gossip.join()" in first[0] + third[0]


def catches(rank, world):
    """Rank 1 catches an error of mixwise, and ends as if nothing had happened."""
    own, optimizer = punctual()
    gossip = mw.Gossip(own, optimizer, mw.graphs.ring(world), timeout=TIMEOUT)

    def loop():
        for step in range(3):
            if rank == 1 and step == 1:
                own.weight.data.fill_(torch.nan)
            gossip.step()

    told = error_of(loop)
    if rank == 1:
        gossip.watch.leave()  # as at the end of a program
        torch.distributed.destroy_process_group()
    return told


def test_the_others_hear_of_an_error_that_a_rank_has_caught():
    first, second, third = run_in_processes(3, catches)
    assert second[0].startswith("mixing 1: a parameter of rank 1 is no longer finite")
    for told, seconds in (first, third):
        assert re.search(
            "rank 1 has stopped with an error: mixing 1: a parameter of rank 1 is no longer finite", told
        ), told
        assert seconds < TIMEOUT / 2


# --- models of all ranks together ---
def averaged(rank, world):
    own, _, gossip = started(rank, world, "dsgd")
    train(gossip, rank, world, range(3))
    own.norm.num_batches_tracked += rank
    before = copy.deepcopy(own.state_dict())
    average = gossip.average()
    assert all(torch.equal(before[key], value) for key, value in own.state_dict().items())
    return before, average, gossip.network.traffic.parameters


def test_average():
    results = run_in_processes(4, averaged)
    for _, average, _ in results:
        assert list(average) == list(results[0][0])
        for key, value in average.items():
            own = [state[key] for state, _, _ in results]
            expected = torch.stack(own).mean(0) if value.is_floating_point() else own[0]
            torch.testing.assert_close(value, expected, rtol=1e-13, atol=1e-15, msg=key)
            assert torch.equal(value, results[0][1][key])
    d = sum(p.numel() for p in model().parameters() if p.requires_grad)
    assert results[0][2] == 3 * 4 * 2 * d * 8  # mixings × nodes × neighbors: measuring is no gossip


# --- states ---
def interrupted(rank, world, name, restarted):
    first = started(rank, world, name)
    train(first[2], rank, world, range(4))
    states = [copy.deepcopy(part.state_dict()) for part in first]
    train(first[2], rank, world, range(4, STEPS))
    rows, sent = first[2].row.X.clone(), vars(first[2].network.traffic).copy()
    second = started(rank, world, name) if restarted else first  # restarted, all ranks have the values of rank 0
    for part, state in zip(second, states, strict=True):
        part.load_state_dict(state)
    train(second[2], rank, world, range(4, STEPS))
    return torch.equal(rows, second[2].row.X) and sent == vars(second[2].network.traffic)


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("name", ["ha-dsgd", "quasi-global", "gradient-tracking", "local-steps", "overlap"])
def test_from_the_three_state_dicts_it_resumes_to_the_same_bits(name, restarted):
    assert run_in_processes(3, interrupted, name, restarted) == [True] * 3


def wrong_state(rank, world):
    parts = started(rank, world, "ha-dsgd")
    states = []
    for t in range(3):
        train(parts[2], rank, world, [t])
        states.append([copy.deepcopy(part.state_dict()) for part in parts])

    def load():
        for part, state in zip(parts, states[0 if rank == 1 else -1], strict=True):
            part.load_state_dict(state)

    return error_of(load)[0]


def test_states_of_different_moments_are_told_apart():
    for told in run_in_processes(3, wrong_state):
        assert told.startswith("rank 1 differs from rank 0: the state to load, ['t'] = 1 instead of 3")


# --- the end ---
def ending(rank, world, name):
    (_, _, gossip), others = started(rank, world, name), Others()
    train(gossip, rank, world, range(3))
    if rank == 1:  # the last mixing is done here when the others have left already
        mix = gossip.driver.mix
        gossip.driver.mix = lambda *args: (mix(*args), others.wait_for(0, 2))
    train(gossip, rank, world, [3])
    others.tell(rank)
    return gossip.t


@pytest.mark.parametrize("name", ["ha-dsgd", "overlap"])
def test_a_rank_that_is_done_first_may_leave(name):
    """With overlap, no rank receives the rows of a mixing that never comes."""
    assert run_in_processes(3, ending, name) == [4] * 3


# --- what the pages promise ---
def blocks(page, language):
    text = (ROOT / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def changed_loop(rank, world, page):
    """The loop of a page with its changes made, on ranks with different data and numbers of batches."""
    diff, *_ = blocks(page, "diff")
    code = "\n".join(line[1:] for line in diff.splitlines() if not line.startswith("-"))
    code = code.replace('dist.init_process_group("gloo")', "assert dist.is_initialized()")
    generator = torch.Generator().manual_seed(rank)
    loader = [(rank + torch.randn(5, 6, generator=generator), torch.arange(5) % 3) for _ in range(BATCHES[rank])]
    names = {"Net": Net, "loader": loader}
    exec(compile(code, page, "exec"), names)
    return names["gossip"].t, names["gossip"].metrics()["bytes_parameters"], names["gossip"].average()["head.weight"]


BATCHES = (17, 17, 12, 12)


@pytest.mark.parametrize("page", ["README.md", "docs/your-own-loop.md", "docs/from-ddp.md"])
def test_the_loop_of_the_pages(page):
    """Ranks that have finished keep mixing until all have."""
    results = run_in_processes(4, changed_loop, page)
    for t, sent, average in results:
        assert t == max(BATCHES)
        assert sent > 0
        assert torch.equal(average, results[0][2])


def from_ddp(rank, world, folder):
    """The page as one program, in a process group that exists already."""
    code = "\n".join(blocks("docs/from-ddp.md", "python"))
    names = {"__name__": "page"}
    with contextlib.chdir(folder), mock.patch("torch.distributed.init_process_group"):
        exec(compile(code, "from-ddp.md", "exec"), names)
    return names["gossip"].t, names["own"], names["shared"]


def test_the_page_for_users_of_ddp(tmp_path):
    results = run_in_processes(2, from_ddp, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-0.pt", "checkpoint-1.pt", "model.pt"]
    assert {t for t, *_ in results} == {8}  # 256 samples, 2 ranks, batches of 16, 2 epochs, 2 backward passes per step
    assert results[0][2] == results[1][2] > 0.6  # the averaged model learns, and is the same everywhere


def beside_ddp(rank, world):
    """The rows of gossip with full averaging and of DDP, with the same learning rate, data and momentum."""
    plain, wrapped = (seeded(lambda: nn.Linear(6, 3), 0).double() for _ in range(2))
    ddp = nn.parallel.DistributedDataParallel(wrapped)
    graph = mw.graphs.complete(world)
    gossip = mw.Gossip(plain, momentum(plain.parameters()), graph, mw.mixing.uniform(graph), timeout=TIMEOUT)
    other, batches, whole = momentum(ddp.parameters()), NodeBatches(parts(world), 5, 0), data()
    for t in range(STEPS):
        index = batches(rank, t)
        for called, optimizer, step in ((plain, gossip.optimizer, gossip.step), (ddp, other, other.step)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(called(whole.x[index]), whole.y[index]).backward()
            step()
    return gossip.average()["weight"], wrapped.weight.detach(), plain.weight.detach()


def test_with_full_averaging_gossip_takes_the_steps_of_ddp():
    """With the same learning rate: the mean of the steps is the step of the mean gradient, and momentum is linear."""
    for average, expected, own in run_in_processes(3, beside_ddp):
        torch.testing.assert_close(average, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(own, expected, rtol=1e-12, atol=1e-12)


def test_the_page_runs_under_torchrun(tmp_path):
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks("docs/your-own-loop.md", "python")), "utf-8")
    shown = torchrun(2, str(script), cwd=tmp_path)
    assert [line.split()[0] for line in shown.splitlines()] == ["0", "1", "2"]
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["checkpoint-0.pt", "checkpoint-1.pt"]


def test_the_example_learns_under_torchrun():
    shown = torchrun(2, str(ROOT / "examples" / "torchrun_digits.py"), "--epochs", "3")
    accuracies = [float(number) for number in re.findall(r"averaged model (\d\.\d+)", shown)]
    assert len(accuracies) == 3
    assert accuracies[-1] > 0.7  # half of the labels are not on this rank
