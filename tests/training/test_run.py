"""What `mixwise.train` returns: a run that trains as far as it is asked, once."""

import warnings

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import mixwise as mw
from builders import cases, refused, sgd
from mixwise.errors import GraphError, MixingError, NetworkError, TrainingError
from mixwise.models import seeded
from mixwise.network import Faults, Link
from mixwise.policies import Cycle

X, Y = torch.randn(24, 6, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3
DATA = mw.data.Dataset(X, Y, 3)
PARTS = [list(range(node, 24, 4)) for node in range(4)]


def quadratics(graph="ring:4", **options):
    return mw.train(mw.tasks.random_quadratics(4), graph, **{"optimizer": sgd(0.005), "steps": 6, **options})


def classifier(**options):
    task = mw.tasks.ModuleTask(lambda: seeded(lambda: nn.Linear(6, 3), 0), DATA, PARTS, batch=6, test=DATA)
    return mw.train(task, "ring:4", **{"optimizer": sgd(0.1), "steps": 5, **options})


def values(run):
    return [record.values for record in run]


def test_iterating_again_yields_the_same_records_and_trains_nothing_twice():
    run = quadratics()
    for record in run:
        assert run.training.t == record.step + 1  # no further than asked
        if record.step == 2:
            break
    assert [record.step for record in run] == list(range(6))
    assert values(run) == values(run.records) == values(quadratics())
    assert run.training.t == 6
    assert run.last is run.records[-1]


def test_what_is_asked_for_trains_to_the_end():
    assert quadratics().last.step == 5
    models = classifier().models()
    assert len(models) == 4
    run = classifier()
    average = run.average_model()
    assert run.training.t == 5
    weights = torch.stack([model.weight for model in models]).mean(0)
    torch.testing.assert_close(average.weight, weights)
    assert not average.training


@pytest.mark.parametrize("node", [None, 2])
def test_a_saved_model_is_a_state_dict(node, tmp_path):
    run = classifier()
    run.save(tmp_path / "model.safetensors", node=node)
    model = run.average_model() if node is None else run.models()[node]
    again = nn.Linear(6, 3)
    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    torch.testing.assert_close(again(X), model(X), rtol=0, atol=0)


def test_a_run_whose_result_is_dropped_says_that_nothing_was_trained():
    with pytest.warns(UserWarning, match="nothing was trained"):
        quadratics()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(quadratics()))


def test_a_run_that_was_interrupted_does_not_pretend_to_be_complete():
    def interrupt(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1.0 if t < 3 else stop())

    def stop():
        raise KeyboardInterrupt

    run = quadratics(scheduler=interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(run)
    refused(TrainingError, r"was interrupted in step 2 of 6", lambda: run.last)


@cases(
    "call, says",
    (lambda path: classifier().save(path / "model.pt"), r"model.pt cannot be written; give a file .*\.safetensors"),
    (lambda path: classifier().save(path / "no" / "m.safetensors"), r"m.safetensors cannot be written: "),
    (lambda path: classifier().save(path / "m.safetensors", node=4), "node = 4; the nodes are 0 to 3"),
    (lambda path: quadratics().models(), r"QuadraticTask has no modules; `run.training.models` holds"),
)
def test_a_model_that_cannot_be_had_is_explained(call, says, tmp_path):
    refused(TrainingError, says, call, tmp_path)


# --- the options of a network ---
def test_links_wire_dtype_and_faults_are_those_of_a_network_made_by_hand():
    options = {"links": Link(0.01, 1e6), "wire_dtype": "bfloat16"}
    network = mw.SimulatedNetwork(mw.graphs.ring(4), mw.network.Links(options["links"]), torch.bfloat16)
    given, by_hand = quadratics(**options).last.values, quadratics(network).last.values
    assert given == by_hand
    assert given["network_seconds"] > 0
    lost = quadratics(faults=Faults(message_loss=0.5)).last.values
    assert lost["messages_lost"] > 0


def test_options_beside_a_network_of_ones_own_are_rejected():
    network = mw.SimulatedNetwork(mw.graphs.ring(4))
    refused(NetworkError, "wire_dtype = 'int8' is given beside a network", quadratics, network, wire_dtype="int8")


def test_several_graphs_take_turns():
    even, odd = mw.Graph(4, [(0, 1), (2, 3)]), mw.Graph(4, [(1, 2), (3, 0)])
    cycle = Cycle([mw.mixing.metropolis_hastings(graph) for graph in (even, odd)])
    for policy in "auto", "metropolis-hastings", mw.mixing.metropolis_hastings:
        assert values(quadratics([even, odd], policy=policy)) == values(quadratics("ring:4", policy=cycle))


@cases(
    "graphs, policy, error, says",
    (["ring:4", "ring:5"], "auto", GraphError, "graph 1 has 5 nodes, graph 0 has 4"),
    ([], "auto", GraphError, "graph is an empty list"),
    (["ring:4", "chain:4"], "pairs", MixingError, "with several graphs, give a weighting scheme"),
    (["ring:4", "chain:4"], mw.HeterogeneityAware(), MixingError, "with several graphs, give a weighting scheme"),
    (["ring:4", "chain:4"], mw.mixing.full_averaging(mw.graphs.ring(4)), MixingError, "with several graphs"),
)
def test_several_graphs_that_cannot_take_turns(graphs, policy, error, says):
    refused(error, says, quadratics, graphs, policy=policy)
