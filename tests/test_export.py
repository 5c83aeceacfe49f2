"""A complete model out of a checkpoint: frozen parameters, buffers and both names of tied weights."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from mixwise.algorithms import DSGD
from mixwise.data import Dataset, partition
from mixwise.errors import TrainingError
from mixwise.experiments.export import export_model
from mixwise.graphs import ring
from mixwise.mixing import metropolis_hastings
from mixwise.models import seeded
from mixwise.network import SimulatedNetwork
from mixwise.policies import Fixed
from mixwise.tasks import ModuleTask
from mixwise.training import Training
from mixwise.training.checkpoint import load_checkpoint, save_checkpoint

NODES = 4
STREAM = torch.Generator().manual_seed(0)
DATA = Dataset(torch.randint(7, (60, 3), generator=STREAM), torch.arange(60) % 7, 7)


class Everything(nn.Module):
    """Tied and frozen weights, BatchNorm, a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.again = self.frozen  # frozen and tied
        self.norm = nn.BatchNorm1d(6)
        self.output = nn.Linear(6, 7, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, tokens):
        hidden = torch.relu(self.again(self.frozen(self.embedding(tokens).mean(1))))
        return self.output(self.norm(hidden)) * self.scale


def make_training(seed=0, module=Everything):
    task = ModuleTask(lambda: seeded(module, seed), DATA, partition.iid(60, NODES, 0), batch=6)
    policy = Fixed(metropolis_hastings(ring(NODES)))
    return Training(task, SimulatedNetwork(ring(NODES)), policy, DSGD(), lambda rows: torch.optim.SGD(rows, lr=0.1))


@pytest.fixture
def run(tmp_path):
    training = make_training()
    for _ in range(5):
        training.step()
    place = tmp_path / "run" / "v" / "seed-0"
    place.mkdir(parents=True)
    save_checkpoint(training, place / "checkpoint")
    return tmp_path / "run", training


@pytest.mark.parametrize("model", ["average", "node:3"])
def test_an_export_loads_strictly_and_is_the_trained_model(run, model, tmp_path):
    folder, training = run
    export_model(folder, "v", model, tmp_path / "m.safetensors")
    module = seeded(Everything, 99)  # nothing of it may survive
    module.load_state_dict(load_file(tmp_path / "m.safetensors"), strict=True)
    task, X = training.task, training.X
    expected = task.average_module(X) if model == "average" else task.node_module(X, 3)
    for name, value in expected.state_dict().items():
        assert torch.equal(module.state_dict()[name], value), name
    assert torch.equal(module.eval()(DATA.x), expected.eval()(DATA.x))
    with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(module.state_dict())


def test_a_resumed_run_goes_on_with_the_frozen_parameters_it_began_with(run):
    folder, training = run
    other = make_training(seed=1)  # as if the factory drew anew
    load_checkpoint(other, folder / "v" / "seed-0" / "checkpoint")
    for _ in range(3):
        training.step()
        other.step()
    assert torch.equal(other.X, training.X)


def test_nodes_share_frozen_parameters():
    training = make_training()
    training.step()
    modules = training.task._run._way._modules
    assert len({id(module) for module in modules}) == len(modules)
    assert len({module.frozen.weight.data_ptr() for module in modules}) == 1
    assert training.task.node_module(training.X, 0).frozen.weight is not training.task.template.frozen.weight


def test_a_frozen_parameter_that_changes_is_one_clear_error():
    class Teacher(Everything):
        def forward(self, tokens):
            with torch.no_grad():
                self.frozen.weight.mul_(0.9)
            return super().forward(tokens)

    training = make_training(module=Teacher)
    with pytest.raises(TrainingError, match=r"changes a frozen parameter.*as a buffer"):
        training.step()
