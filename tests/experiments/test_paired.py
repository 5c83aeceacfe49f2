"""A comparison is paired: the methods of a seed share graph, start and data, and two seeds do not."""

import json

import pytest
import torch
from torch import nn

import mixwise as mw
from builders import mixture_task, refused, sgd
from mixwise.errors import ConfigError, NetworkError, TrainingError
from mixwise.models import seeded
from mixwise.tasks import QuadraticTask
from run_folders import StoppedError, read_records

pytestmark = pytest.mark.usefixtures("no_pictures")
METHODS = {"gossip": "metropolis-hastings", "again": "metropolis-hastings"}


def compared(out, task, graph="ring:4", methods=METHODS, **changes):
    given = {"seeds": [0, 1], "optimizer": sgd(0.005), "steps": 4, "progress": False, **changes}
    return mw.compare(task, graph, methods, out=out, **given)


def quadratics(seed, **options):
    return mw.tasks.random_quadratics(4, seed=seed, **options)


# --- pairing ---
def test_a_model_factory_that_draws_from_the_global_generator_is_rejected(tmp_path):
    says = r"seed 0: method again starts from other parameters than gossip, .*seeded\(Net, seed\)"
    refused(ConfigError, says, compared, tmp_path / "mine", lambda seed: mixture_task(lambda: nn.Linear(8, 4), 4))
    assert not (tmp_path / "mine").exists()
    ours = lambda seed: mixture_task(lambda: seeded(lambda: nn.Linear(8, 4), seed), 4)  # noqa: E731
    run = compared(tmp_path / "mine", ours)
    assert run.results["gossip"] == run.results["again"]
    assert run.results["gossip"][0] != run.results["gossip"][1]


@pytest.mark.parametrize("task", [quadratics(0), None])
def test_seeds_that_are_the_same_run_are_rejected(task, tmp_path):
    """One object, or one that is remade from the same seed."""
    make = (lambda seed: quadratics(0)) if task is None else (lambda seed: task)
    says = "seeds 0 and 1 have the same parameters, data and graph, so a second seed adds nothing; use the seed"
    refused(ConfigError, says, compared, tmp_path / "mine", make)
    graph = lambda seed: mw.graphs.ring(4) if seed else mw.graphs.star(4)  # noqa: E731
    assert compared(tmp_path / "graphs", make, graph).recipe.seeds == [0, 1]
    assert compared(tmp_path / "one", make, seeds=[1]).recipe.seeds == [1]


class OtherBatches(QuadraticTask):
    """Noise from the global generator: every method sees other gradients."""

    def losses_and_gradients(self, X, nodes, step):
        losses, G = super().losses_and_gradients(X, nodes, step)
        return losses, G + torch.randn(G.shape)


def test_methods_that_see_other_data_are_rejected(tmp_path):
    base = quadratics(0)
    says = "seed 0: method again sees other data in its first step than gossip"
    refused(ConfigError, says, compared, tmp_path / "mine", lambda seed: OtherBatches(base.A, base.b, seed=seed))


def test_methods_on_other_graphs_are_rejected(tmp_path):
    graphs = iter([mw.graphs.ring(4), mw.graphs.ring(4), mw.graphs.ring(4), mw.graphs.chain(4)])
    says = "seed 0: method again has another graph than gossip"
    refused(ConfigError, says, compared, tmp_path / "mine", quadratics, lambda seed: next(graphs), seeds=[0])


def test_a_run_is_not_resumed_from_another_start(tmp_path):
    """A model that was drawn when the program began: alike for all methods, until the program begins again."""

    def begun(seed):
        torch.manual_seed(seed)
        drawn = nn.Linear(8, 4)
        return lambda seed: mixture_task(lambda: drawn, 4, seed=seed)

    options = {"resume": True, "checkpoint_every": 2, "seeds": [5]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mixwise.experiments.runner.save_checkpoint", stop_after(2))
        with pytest.raises(StoppedError):
            compared(tmp_path / "mine", begun(0), **options)
    says = "seed 5 starts from other parameters than in the runs that .*mine holds, so new and old runs cannot"
    refused(TrainingError, says, compared, tmp_path / "mine", begun(1), **options)
    compared(tmp_path / "mine", begun(0), **options)
    fingerprint = json.loads((tmp_path / "mine" / "fingerprint.json").read_text())
    assert fingerprint["starts"].keys() == {"5"}


def stop_after(calls):
    left = iter(range(calls))

    def stop(training, folder):
        if next(left, None) is None:
            raise StoppedError

    return stop


# --- options of train ---
def last(folder, method="gossip", seed=0):
    return read_records(folder, method, seed)[-1]


def test_every_network_option_of_train_has_its_effect(tmp_path):
    link = mw.network.Link(latency=0.01, bandwidth=1e6)
    methods = {
        "plain": {},
        "half": {"wire_dtype": "bfloat16"},
        "slow": {"links": link},
        "lossy": {"faults": mw.network.Faults(message_loss=0.5)},
    }
    wide = lambda seed: quadratics(seed, dim=100)  # noqa: E731
    compared(tmp_path / "mine", wide, methods=methods, seeds=[0])
    plain, half, slow, lossy = (last(tmp_path / "mine", name) for name in methods)
    assert half["bytes_parameters"] == plain["bytes_parameters"] / 4  # of float64
    assert "network_seconds" not in plain
    assert slow["network_seconds"] > 0
    assert "messages_lost" not in plain
    assert 0.2 < lossy["messages_lost"] < 0.8


def test_the_records_are_those_of_train_with_the_same_options(tmp_path):
    options = {"wire_dtype": "bfloat16", "faults": mw.network.Faults(message_loss=0.3), "steps": 4, "evaluate_every": 1}
    compared(tmp_path / "mine", quadratics, **options)
    for seed in (0, 1):
        alone = mw.train(quadratics(seed), "ring:4", "metropolis-hastings", optimizer=sgd(0.005), seed=seed, **options)
        assert read_records(tmp_path / "mine", "gossip", seed) == [json.loads(record.to_json()) for record in alone]


def test_several_graphs_take_turns(tmp_path):
    graphs = [mw.graphs.ring(4), mw.graphs.star(4), "complete:4"]
    compared(tmp_path / "mine", quadratics, graphs, methods={"gossip": "auto"}, record_every=1)
    bytes_sent = [record["bytes_parameters"] for record in read_records(tmp_path / "mine", "gossip", 0)]
    row = 80  # 10 numbers in float64; a ring of 4 has 8 arcs, a star 6; an average takes 2 (n − 1)/n rows of each node
    assert bytes_sent == [8 * row / 4, 14 * row / 4, 20 * row / 4, 28 * row / 4]
    made = compared(tmp_path / "made", quadratics, lambda seed: graphs, methods={"gossip": "auto"}, record_every=1)
    assert made.results["gossip"][0] == read_records(tmp_path / "mine", "gossip", 0)


def test_options_beside_a_network_of_the_seed_are_rejected(tmp_path):
    network = lambda seed: mw.SimulatedNetwork(mw.graphs.ring(4))  # noqa: E731
    says = "method gossip: wire_dtype = 'int8' is given beside a network"
    refused(NetworkError, says, compared, tmp_path / "mine", quadratics, network, wire_dtype="int8")
