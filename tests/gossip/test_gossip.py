"""Gossip in one process: what it does to a model and to an optimizer, and which combinations it refuses."""

import copy
import io
import itertools
import os
import sys
from collections import OrderedDict
from functools import partial
from types import SimpleNamespace
from unittest.mock import DEFAULT, patch

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mixwise as mw
from builders import TWO_PAIRS, cases, refused
from mixwise.errors import ConfigError, MixingError, TrainingError
from mixwise.experiments import load_run
from mixwise.network import Link, Links, SimulatedNetwork
from mixwise.network.agreement import describe, describe_model, difference, report
from mixwise.policies import Auto, Pairs
from mixwise.protocols import Context
from mixwise.report.folder import read_folder
from mixwise.report.page import page_data
from mixwise.sketch import CountSketch, GaussianSketch
from small_net import Net

ALONE = mw.Graph(1, [])


def net(seed=0):
    torch.manual_seed(seed)
    return Net(4, 4).double()


def batches(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield torch.randn(8, 4, generator=generator, dtype=torch.float64)


def backward(model, x):
    loss = (model(x) - x).square().mean()
    loss.backward()
    return loss


def train(model, optimizer, step, count=5, seed=1):
    """Take steps, with a closure where the optimizer needs one; returns what they return."""

    def closure(x):
        optimizer.zero_grad()
        return backward(model, x)

    results = []
    for x in batches(count, seed):
        if isinstance(optimizer, torch.optim.LBFGS):
            results.append(step(partial(closure, x)).item())
        else:
            closure(x)
            step()
    return results


def train_with(gossip, count=5, seed=1):
    train(gossip.model, gossip.optimizer, gossip.step, count, seed)


OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True),
    "groups": lambda model: torch.optim.Adam(
        [{"params": model.first.parameters(), "lr": 0.1}, {"params": [model.scale, *model.norm.parameters()]}], lr=0.01
    ),
    "lbfgs": lambda model: torch.optim.LBFGS([p for p in model.parameters() if p.requires_grad], lr=0.1, max_iter=2),
}


def plain_sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def gossip_of(change=None, graph=ALONE, optimizer=OPTIMIZERS["sgd"], **options):
    """Gossip on a new model, which `change` changes before."""
    model = net()
    if change is not None:
        change(model)
    return mw.Gossip(model, optimizer(model), graph, **options)


def as_if_connected(network):
    """As if the ranks of other processes were on this network."""
    start = {"begin_together": DEFAULT, "check_graph": DEFAULT, "connected": lambda *options: network}
    return patch.multiple("mixwise.gossip.gossip", **start)


# --- the model and the optimizer stay what they are ---
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("policy", ["auto", mw.HeterogeneityAware(period=2), mw.mixing.metropolis_hastings(ALONE)])
def test_alone_it_is_the_training_it_was_before(name, policy):
    with_gossip, without = net(), net()
    optimizers = OPTIMIZERS[name](with_gossip), OPTIMIZERS[name](without)
    gossip = mw.Gossip(with_gossip, optimizers[0], ALONE, copy.deepcopy(policy))
    results = train(with_gossip, optimizers[0], gossip.step)
    assert results == pytest.approx(train(without, optimizers[1], optimizers[1].step), rel=1e-12)
    assert gossip.t == 5
    assert list(with_gossip.state_dict()) == list(without.state_dict())
    for (key, a), b in zip(with_gossip.state_dict().items(), without.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-15, msg=key)


def test_the_parameters_are_the_same_objects_in_one_row():
    model = net()
    before, values = list(model.parameters()), [p.detach().clone() for p in model.parameters()]
    gossip = mw.Gossip(model, OPTIMIZERS["sgd"](model), ALONE)
    assert all(a is b for a, b in zip(model.parameters(), before, strict=True))
    assert all(torch.equal(p, value) for p, value in zip(model.parameters(), values, strict=True))
    trained = [p for p in model.parameters() if p.requires_grad]
    assert gossip.row.X.shape == (1, sum(p.numel() for p in trained))  # shared ones once, frozen ones not at all
    gossip.row.X.fill_(3.0)
    assert all(bool((p == 3.0).all()) for p in trained)
    assert torch.equal(model.frozen.weight, values[1])


def test_the_parameters_are_saved_one_by_one_though_they_share_a_row(tmp_path):
    """Tools such as safetensors take tensors of one storage for one weight, and save it once."""
    model = gossip_of().model
    state = {name: value for name, value in model.state_dict().items() if name != "again.weight"}  # one that is tied
    save_file(state, tmp_path / "model.safetensors")
    saved = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in state.items())
    torch.save(model.norm.weight, tmp_path / "weight.pt")
    assert torch.load(tmp_path / "weight.pt").untyped_storage().nbytes() == model.norm.weight.numel() * 8


@pytest.mark.parametrize("moment", ["before the step", "between step and mixing"])
def test_memory_that_was_moved_is_noticed(moment):
    def run(move):
        gossip = gossip_of(policy=mw.HeterogeneityAware())
        model = gossip.model
        for x in batches(4):
            gossip.optimizer.zero_grad()
            backward(model, x)
            if move and moment == "before the step":
                model.first.weight.data = model.first.weight.data.clone()
            gossip.optimizer.step()
            if move and moment != "before the step":
                model.first.weight.data = model.first.weight.data.clone()
            gossip.mix()
        start, end = gossip.row.X.data_ptr(), gossip.row.X.data_ptr() + gossip.row.X.numel() * 8
        assert all(start <= p.data_ptr() < end for p in model.parameters() if p.requires_grad)
        return gossip.row.X.clone()

    assert torch.equal(run(move=True), run(move=False))


def test_loading_weights_between_two_steps_is_no_update():
    """The update is what the optimizer does, not what the user writes into the model."""
    gossip = gossip_of(optimizer=plain_sgd, algorithm=mw.algorithms.QuasiGlobalMomentum(0.5, nesterov=False))
    train_with(gossip, 1)
    momentum = gossip.driver.algorithm_state.rows["momentum"].clone()
    gossip.model.load_state_dict(net(5).state_dict())
    gossip.optimizer.zero_grad()
    gossip.step()  # no gradient: a step along β m̂ alone
    expected = 0.5 * momentum + 0.5 * (0.5 * momentum)  # μ m̂ + (1 − μ) d with d = β m̂
    torch.testing.assert_close(gossip.driver.algorithm_state.rows["momentum"], expected)


def test_a_newer_gossip_takes_the_place_of_an_older_one():
    def run(times):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(times):
            gossip = mw.Gossip(model, optimizer, ALONE, algorithm=mw.algorithms.QuasiGlobalMomentum(nesterov=True))
        train(model, optimizer, gossip.step)
        return gossip.row.X

    assert torch.equal(run(1), run(2))


# --- gradients that the algorithm turns ---
@pytest.mark.parametrize("set_to_none", [True, False])
def test_quasi_global_momentum_alone_is_heavy_ball(set_to_none):
    """With one node the movement is the step, so m̂⁺ = β m̂ + (1 − β)(β m̂ + g), written out here."""
    gossip = gossip_of(optimizer=plain_sgd, algorithm=mw.algorithms.QuasiGlobalMomentum(0.9, nesterov=False))
    X, m = gossip.row.X.clone(), torch.zeros_like(gossip.row.X)
    for x in batches(4):
        gossip.optimizer.zero_grad(set_to_none=set_to_none)
        backward(gossip.model, x)
        direction = gossip.row.gradients().clone() + 0.9 * m
        X -= 0.1 * direction
        m = 0.9 * m + 0.1 * direction
        gossip.step()
        torch.testing.assert_close(gossip.row.X, X, rtol=1e-12, atol=1e-12)


def test_gradients_are_changed_for_the_optimizer_only():
    gossip = gossip_of(optimizer=plain_sgd, algorithm=mw.algorithms.QuasiGlobalMomentum(0.9))
    for x in batches(3):
        gossip.optimizer.zero_grad(set_to_none=False)
        backward(gossip.model, x)
        G, before = gossip.row.gradients().clone(), gossip.row.X.clone()
        gossip.step()
        assert torch.equal(gossip.row.gradients(), G)
        assert not torch.allclose(gossip.row.X, before - 0.1 * G)


def test_parameters_without_a_gradient_count_as_0():
    gossip = gossip_of(optimizer=plain_sgd, algorithm=mw.algorithms.QuasiGlobalMomentum(0.9))
    model, before = gossip.model, gossip.model.scale.item()
    model.first.weight.grad = torch.ones_like(model.first.weight)
    gossip.step()
    assert model.scale.item() == before
    train_with(gossip, 1)
    gossip.optimizer.zero_grad()
    model.first.weight.grad = torch.ones_like(model.first.weight)
    assert gossip.row.gradients().count_nonzero() == 16  # and not those of the step before


def scaled_step(gossip, scaler, loss):
    gossip.optimizer.zero_grad()
    scaler.scale(loss()).backward()
    gossip.step(scaler=scaler)
    scaler.update()


@pytest.mark.parametrize("algorithm", [None, "quasi-global"])
@pytest.mark.parametrize("fused", [True, False])
def test_scalers_scale_and_skip(algorithm, fused):
    """With finite gradients a scaler changes nothing; with others the step is skipped, counted, and mixed."""

    def run(scaled):
        gossip = gossip_of(
            optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=0.1, fused=fused),
            algorithm=None if algorithm is None else mw.algorithms.QuasiGlobalMomentum(0.9),
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
        for x in batches(3):
            scaled_step(gossip, scaler, lambda x=x: (gossip.model(x) - x).square().mean())
        return gossip, scaler

    (gossip, scaler), (plain, _) = run(scaled=True), run(scaled=False)
    torch.testing.assert_close(gossip.row.X, plain.row.X, rtol=1e-12, atol=1e-12)
    before, scale = gossip.row.X.clone(), scaler.get_scale()
    scaled_step(gossip, scaler, lambda: (gossip.model(next(batches(1))) * torch.inf).mean())
    assert (gossip.t, gossip.steps.tally.taken) == (4, 3)
    assert scaler.get_scale() == scale / 2
    assert torch.equal(gossip.row.X, before)


def test_a_skipped_step_of_local_ones_counts():
    gossip = gossip_of(optimizer=plain_sgd, algorithm=mw.algorithms.GradientTracking(), local_steps=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    (x,) = batches(1)
    for factor, mixings in ((torch.inf, 0), (1.0, 1), (1.0, 1), (torch.inf, 2)):
        scaled_step(gossip, scaler, lambda factor=factor: (gossip.model(x) * factor).mean())
        assert gossip.t == mixings
        assert gossip.driver.algorithm_state.shared["steps"] == gossip._calls  # what it divides by


# --- trainers ---
class Accelerated(torch.optim.Optimizer):
    """An optimizer as accelerate wraps it: without hooks of its own, and without a step while gradients accumulate."""

    def __init__(self, optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.gradient_state = SimpleNamespace(sync_gradients=True)

    def step(self, closure=None):
        if self.gradient_state.sync_gradients:
            self.optimizer.step(closure)


@pytest.mark.parametrize("algorithm", ["dsgd", "gradient-tracking"])  # the second changes gradients before the step
def test_accumulated_gradients_of_accelerate_are_one_step(algorithm):
    gossip = gossip_of(optimizer=lambda m: Accelerated(plain_sgd(m)), algorithm=algorithm)
    expected = gossip_of(optimizer=plain_sgd, algorithm=algorithm)
    for number, x in enumerate(batches(6)):
        gossip.optimizer.gradient_state.sync_gradients = number % 2 == 1
        for one in (gossip, expected):
            backward(one.model, x)
        gossip.step()
        if number % 2:
            expected.step()
            for one in (gossip, expected):
                one.model.zero_grad()
    assert (gossip.t, gossip.steps.tally.taken) == (3, 3)
    assert torch.equal(gossip.row.X, expected.row.X)


def test_a_node_that_is_started_hides_the_others_and_their_gpus(alone_in_a_group, monkeypatch):
    told = {"RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "CUDA_VISIBLE_DEVICES": "4,5"}
    with patch.dict(os.environ, told):
        assert mw.gossip.start_node() == (0, 1)
        assert {name: os.environ.get(name) for name in told} == told | {
            "LOCAL_RANK": None, "WORLD_SIZE": None, "CUDA_VISIBLE_DEVICES": "5"
        }  # fmt: skip


def test_a_program_that_no_launcher_has_started_is_alone():
    with patch.dict(os.environ):
        os.environ.pop("RANK", None)
        assert mw.gossip.start_node() == (0, 1)
    assert not dist.is_initialized()


def test_a_trainer_that_is_not_installed_is_named(monkeypatch):
    for package in ("lightning", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, package, None)
    refused(TrainingError, r"lightning.pytorch is not installed; .*trainers\]", mw.gossip.lightning_callback, ALONE)


# --- states ---
@pytest.mark.parametrize("local_steps", [1, 3])
@pytest.mark.parametrize("algorithm", ["DSGD", "QuasiGlobalMomentum", "GradientTracking", "CombineThenAdapt"])
def test_a_state_in_the_middle_of_steps_resumes_to_the_same_bits(algorithm, local_steps):
    """From files that are loaded without running code."""

    def make():
        made, policy = getattr(mw.algorithms, algorithm)(), mw.HeterogeneityAware(period=2)
        return gossip_of(optimizer=plain_sgd, policy=policy, algorithm=made, local_steps=local_steps)

    def parts(gossip):
        return gossip.model, gossip.optimizer, gossip

    first, second = make(), make()
    train_with(first, 4)
    first.optimizer.step()
    if local_steps > 1:  # else the step is not mixed yet
        first.stepped()
    saved = io.BytesIO()
    torch.save([part.state_dict() for part in parts(first)], saved)
    saved.seek(0)
    train_with(second, 1, seed=9)
    for part, state in zip(parts(second), torch.load(saved, weights_only=True), strict=True):
        part.load_state_dict(state)
    assert second.t == first.t
    for gossip in (first, second):
        if local_steps == 1:
            gossip.mix()
        train_with(gossip, 5, seed=2)
        gossip.mix()
    assert torch.equal(first.row.X, second.row.X)
    assert second.metrics() == first.metrics()


def test_states_of_another_rank_algorithm_or_of_other_parameters_are_refused():
    gossip = gossip_of()
    quasi_global = gossip_of(optimizer=plain_sgd, algorithm=mw.algorithms.QuasiGlobalMomentum()).state_dict()
    refused(TrainingError, "state of QuasiGlobalMomentum, loaded into DSGD; make", gossip.load_state_dict, quasi_global)
    state = gossip.state_dict()
    other = copy.deepcopy(state)
    other["values"] |= {"rank": 2, "world": 4}
    refused(TrainingError, "state of rank 2 of 4, loaded on rank 0 of 1; every rank", gossip.load_state_dict, other)
    train_with(gossip, 1)
    refused(TrainingError, "not those that were saved with this state; after", gossip.load_state_dict, state)


@pytest.mark.parametrize("other", [{}, nn.Linear(2, 2).state_dict()])
def test_another_state_dict_is_refused(other):
    model = net()
    gossip = mw.Gossip(model, torch.optim.SGD(model.parameters(), lr=0.1), ALONE)
    refused(
        TrainingError, r"holds (nothing|weight, bias); load what gossip.state_dict\(\)", gossip.load_state_dict, other
    )


def test_average_alone_is_a_copy_of_the_state_dict():
    gossip = gossip_of()
    train_with(gossip, 2)
    average, model = gossip.average(), gossip.model
    own = model.state_dict()
    assert list(average) == list(own)
    assert all(torch.equal(average[key], own[key]) for key in own)
    places = [value.data_ptr() for value in (*average.values(), *model.parameters(), *model.buffers())]
    assert len(set(places)) == len(places)
    net(3).load_state_dict(average)  # strict


def test_join_alone():
    gossip = gossip_of(local_steps=2)
    with gossip.join():
        train_with(gossip, 3)
    assert gossip.t == 2  # the third step is mixed as well
    with gossip.join(), pytest.raises(TrainingError, match="inside join"), gossip.join():
        pass


# --- combinations that are refused ---
@cases(
    "options, message",
    ({"graph": mw.graphs.ring(4)}, r"4 nodes, but this is the only process; start 4: mixwise launch"),
    ({"graph": 4}, r"graph is 4; take a mixwise.Graph"),
    ({"policy": "metropolis"}, r"policy: unknown policy 'metropolis'; did you mean metropolis-hastings"),
    ({"local_steps": 1.5}, "local_steps = 1.5; give a whole number of at least 1"),
    ({"buffers": "mixed"}, "buffers = 'mixed'; choose"),
    ({"links": 0.02}, r"links is 0.02; pass one: mixwise.network.Link\(0.02, 1.25e6\)"),
    ({"algorithm": mw.algorithms.AllReduceSGD()}, "use torch's DistributedDataParallel"),
    ({"algorithm": mw.algorithms.D2(), "overlap": True}, "D2 does not support overlap=True; omit"),
    ({"algorithm": mw.algorithms.QuasiGlobalMomentum()}, "plain SGD, and the optimizer is SGD with momentum"),
    ({"policy": mw.policies.NoMixing()}, "DSGD and NoMixing do not fit together"),
    ({"elastic": True, "policy": mw.mixing.metropolis_hastings(ALONE)}, "made for one graph, and a loss leaves"),
    ({"rejoin": "checkpoint"}, 'rejoin = \'checkpoint\'; choose "neighbor" or "own"'),
    ({"log": 5}, "log = 5; pass the folder"),
    ({"log": "x", "log_every": 0}, "log_every = 0; give a whole number of at least 1"),
    ({"change": lambda m: m.first.bfloat16()}, r"'first.weight' is torch.bfloat16 on cpu"),
    ({"change": lambda m: m.bfloat16()}, r"loses small updates; keep them in torch.float32"),
    ({"change": lambda m: m.requires_grad_(False)}, "no parameter to train"),
    ({"change": lambda m: m.scale.data.fill_(torch.nan)}, "not finite before the first step"),
    (
        {"optimizer": lambda m: torch.optim.SGD([*m.parameters(), nn.Parameter(torch.ones(7))], lr=0.1)},
        r"parameter of shape \(7,\) that is not in the model",
    ),
    (
        {"algorithm": mw.algorithms.RelaySGD(), "policy": mw.policies.Tree(ALONE), "buffers": "averaged"},
        "RelaySGD has no mixing weights for the nodes' buffers",
    ),
)
def test_parts_that_do_not_fit_are_refused_at_the_start(options, message):
    refused(mw.MixwiseError, message, gossip_of, **options)


def test_a_graph_that_is_not_connected_is_refused():
    message = r"2 components, nodes 0-1 \| 2-3, .*use a connected graph"
    with as_if_connected(SimulatedNetwork(TWO_PAIRS)):
        refused(mw.MixwiseError, message, gossip_of, graph=TWO_PAIRS)


@cases(
    "variables, message",
    ({"WORLD_SIZE": "4"}, r"^this is process 2 of 4, but there is no process group yet; call .*init_process_group"),
    ({"WORLD_SIZE": "4", "MIXWISE_LIGHTHOUSES": "127.0.0.1:1"}, "no process group yet; pass elastic=True"),
    ({"WORLD_SIZE": "3"}, "4 nodes, but there are 3 processes; .* take a graph for 3 nodes"),
)
def test_processes_that_were_started_are_not_told_to_start(variables, message):
    with patch.dict(os.environ, variables, RANK="2"):
        refused(TrainingError, message, gossip_of, graph=mw.graphs.ring(4))


@pytest.fixture
def alone_in_a_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sharded(model):
    """By FSDP's function; with the class the parameters would also be another tensor."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


class FullyShardedDataParallel(nn.Sequential):
    """Stands for FSDP's class, which warns and does nothing in a group of one."""


@cases(
    "wrap, message",
    (DistributedDataParallel, "^the model is a DistributedDataParallel, .*the module inside of it"),
    (lambda m: nn.Sequential(DistributedDataParallel(m)), "^the part '0' of the model is a DistributedData"),
    (lambda m: torch.compile(DistributedDataParallel(m), backend="eager"), "is a DistributedDataParallel"),
    (FullyShardedDataParallel, r"^the model is a FullyShardedDataParallel, .*; leave out FullyShardedDataParallel\("),
    (sharded, "^the model is a FSDPModule, which divides .*; leave out fully_shard, or train it without Gossip$"),
)
def test_a_model_whose_gradients_are_averaged_over_all_ranks_is_refused(alone_in_a_group, wrap, message):
    model = wrap(nn.Linear(3, 2))
    refused(TrainingError, message, mw.Gossip, model, torch.optim.SGD(model.parameters(), lr=0.1), ALONE)


class Compiled(nn.Module):
    """A model with a part that is compiled."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.compile(nn.Linear(3, 3), backend="eager"), nn.Linear(3, 2)

    def forward(self, x):
        return self.second(self.first(x))


@pytest.mark.parametrize("order", ["before", "after", "a part"])
def test_a_compiled_model_is_trained_and_averaged_under_the_names_of_the_plain_one(order):
    plain = nn.Sequential(OrderedDict(first=nn.Linear(3, 3), second=nn.Linear(3, 2)))
    model = Compiled() if order == "a part" else plain
    if order == "before":
        model = torch.compile(plain, backend="eager")
    gossip = mw.Gossip(model, torch.optim.SGD(model.parameters(), lr=0.1), ALONE)
    if order == "after":
        model = torch.compile(plain, backend="eager")
    before = gossip.row.X.clone()
    model(torch.ones(4, 3)).sum().backward()
    gossip.step()
    assert not torch.equal(gossip.row.X, before)
    average = gossip.average()
    assert list(average) == list(plain.state_dict())
    nn.Sequential(OrderedDict(first=nn.Linear(3, 3), second=nn.Linear(3, 2))).load_state_dict(average)


def test_a_compiled_and_a_plain_model_are_the_same_to_other_ranks():
    plain = nn.Linear(3, 2)
    assert describe_model(torch.compile(plain, backend="eager")) == describe_model(plain)


def test_a_refused_model_is_left_alone():
    model = net()
    places = [p.data_ptr() for p in model.parameters()]
    with pytest.raises(TrainingError):
        mw.Gossip(model, OPTIMIZERS["sgd"](model), mw.graphs.ring(4))
    assert [p.data_ptr() for p in model.parameters()] == places


def assign(model):
    model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()}, assign=True)


@cases(
    "change, message",
    (assign, "is another tensor than when Gossip was made"),
    (lambda model: model.frozen.requires_grad_(True), "'frozen.weight' was frozen when Gossip was made"),
    (lambda model: model.float(), "is torch.float32 on cpu, others are torch.float64 on cpu"),
    (lambda model: model.scale.data.fill_(torch.nan), "mixing 0: a parameter of rank 0 is no longer finite"),
)
def test_changes_that_cannot_work_are_refused_before_they_are_mixed(change, message):
    gossip = gossip_of()
    change(gossip.model)
    refused(TrainingError, message, gossip.mix)


def test_a_loss_in_the_place_of_a_closure_is_explained():
    model = net()
    gossip = mw.Gossip(model, torch.optim.SGD(model.parameters(), lr=0.1), ALONE)
    loss = backward(model, next(batches(1)))
    refused(TrainingError, r"closure is an object of type Tensor; .*gossip.step\(loss=loss\)", gossip.step, loss)


def test_gradients_that_a_closure_computes_cannot_be_turned():
    gossip = gossip_of(optimizer=plain_sgd, algorithm=mw.algorithms.GradientTracking())
    refused(TrainingError, r"GradientTracking changes .* call backward\(\) before", gossip.step, lambda: 0.0)


# --- what ranks compare ---
POLICIES = [
    mw.HeterogeneityAware(),
    mw.HeterogeneityAware(period=2),
    mw.HeterogeneityAware(sketch=CountSketch(100, seed=1)),
    mw.HeterogeneityAware(sketch=GaussianSketch(100)),
    mw.HeterogeneityAware(alternate_with=mw.mixing.metropolis_hastings(mw.graphs.ring(4))),
    mw.HeterogeneityAware(alternate_with=mw.mixing.lazy(mw.mixing.metropolis_hastings(mw.graphs.ring(4)))),
    mw.HeterogeneityAware(objective="both"),
    mw.policies.Matcha(0.4),
    mw.policies.Matcha(0.5),
    mw.policies.Product([mw.HeterogeneityAware(), mw.policies.NoMixing()]),
    mw.policies.Product([mw.policies.NoMixing(), mw.HeterogeneityAware()]),
]


def compared(*reports):
    return difference(reports, range(len(reports)))


def test_descriptions_tell_policies_apart_but_not_copies():
    texts = [report(describe("the policy", policy), None) for policy in POLICIES]
    assert texts == [report(describe("the policy", copy.deepcopy(policy)), None) for policy in POLICIES]
    for a, b in itertools.combinations(texts, 2):
        assert compared(a, b).startswith("rank 1 differs from rank 0: the policy")


def test_the_one_that_differs_is_named():
    def model(width=4, **changes):
        lines = describe_model(nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width)))
        return report(lines | changes, None)

    one, same = "rank 1 differs from rank 0: ", "; all processes need the same"
    assert compared(*[model()] * 4) is None
    assert compared(model(), model(), model(5)) == (
        f"rank 2 differs from rank 0: parameter '0.weight' has shape (5, 2) instead of (4, 2){same}"
    )
    assert compared(model(5), model(), model()).startswith("rank 0 differs from rank 1: parameter '0.weight'")
    assert compared(model(), model(5)).startswith(one)
    assert compared(model(), model(more="yes")) == f"{one}it alone has: more yes{same}"
    assert compared(model(more="yes"), model()) == f"{one}it lacks: more yes{same}"
    bad = report({}, TrainingError("no parameter to train"))
    assert compared(model(), bad, model()) == "rank 1 cannot continue: no parameter to train"


def test_orders_of_the_same_parameters_are_compared_too():
    lines = describe_model(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    turned = dict(reversed(list(lines.items())))
    assert "another order of parameters or buffers" in compared(report(lines, None), report(turned, None))


# --- the log ---
def logged(target, count=7, state=None, **options):
    """The records of a loop that logs every 3rd mixing, and its Gossip."""
    gossip = gossip_of(log=target, log_every=3, **options)
    if state is not None:
        for part, saved in zip((gossip.model, gossip.optimizer, gossip), state, strict=True):
            part.load_state_dict(saved)
    losses = []
    for x in batches(count):
        gossip.optimizer.zero_grad()
        losses.append(backward(gossip.model, x))
        gossip.step(loss=losses[-1])
    return gossip, [float(loss.detach()) for loss in losses]


def test_a_logger_gets_the_loss_and_the_metrics_every_so_often():
    told = []
    gossip, losses = logged(lambda step, values: told.append((step, values)))
    assert [step for step, _ in told] == [0, 3, 6]
    assert [values["loss"] for _, values in told] == pytest.approx([losses[t] for t in (0, 3, 6)], rel=1e-6)
    assert told[-1][1] == gossip.metrics()
    assert {"consensus_distance", "heterogeneity", "bytes_parameters"} <= told[-1][1].keys()


def test_a_log_is_a_run_folder(tmp_path):
    _, losses = logged(tmp_path / "mine", policy="metropolis-hastings")
    run = load_run(tmp_path / "mine")
    assert run.missing == ()
    steps, values = run.curve("dsgd-metropolis-hastings", "loss")
    assert steps.tolist() == [0, 3, 6]
    assert values[0] == pytest.approx([losses[t] for t in steps], rel=1e-6)
    found = read_folder(tmp_path / "mine")
    assert [line["step"] for line in found.runs[0].weights] == [0]  # they do not change
    data = page_data([found])
    assert data["experiments"][0]["rows"][0]["cells"][0]["mean"] == pytest.approx(losses[6], rel=1e-6)
    assert list((tmp_path / "mine").rglob("tensorboard/events*"))
    refused(ConfigError, "choose another with log", logged, tmp_path / "mine")


def test_a_resumed_loop_continues_its_log(tmp_path):
    whole, _ = logged(tmp_path / "whole", count=4)
    state = [copy.deepcopy(part.state_dict()) for part in (whole.model, whole.optimizer, whole)]
    for x in batches(4, seed=2):  # recorded, but after the checkpoint
        backward(whole.model, x)
        whole.step()
    logged(tmp_path / "whole", count=5, state=state)
    steps, _ = load_run(tmp_path / "whole").curve("dsgd-auto", "consensus_distance")
    assert steps.tolist() == [0, 3, 6]
    assert [sorted(r) for r in load_run(tmp_path / "whole").results["dsgd-auto"][0]][-1].count("loss") == 1


@pytest.mark.parametrize("links", [None, Link(0.02, 1.25e6)])
def test_auto_chooses_the_rounds_by_the_links(links):
    network = SimulatedNetwork(mw.graphs.ring(16))
    network.nodes = range(1)
    model = net()
    with as_if_connected(network):
        gossip = mw.Gossip(model, plain_sgd(model), network.graph, links=links)
    row_bytes = 4 * gossip.row.X.numel()
    context = Context(network.graph, links=links and Links(links), row_bytes=row_bytes, wire_bytes=row_bytes)
    chosen = gossip.driver.policy_state.scratch["policy"]
    assert chosen == Auto().choose(context) == Pairs(None if links is None else 8)  # an exact average


def test_weights_off_the_graph_are_rejected():
    network = SimulatedNetwork(mw.graphs.ring(6))
    network.nodes = range(1)
    model, W = net(), mw.mixing.metropolis_hastings(mw.graphs.complete(6))
    with as_if_connected(network):
        rule = "the matrix sends from node 0 to node 2, an arc that the graph"
        refused(MixingError, rule, mw.Gossip, model, plain_sgd(model), network.graph, W)
