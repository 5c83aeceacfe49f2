"""A policy of your own: stay silent while the nodes agree, and mix when they have drifted apart.

    python examples/own_policy.py --steps 300

A policy answers one question, with which weights at mixing t, by a `Plan`. It may look at the nodes' rows through
sketches, which cost fifty numbers per node instead of a whole row.
"""

import argparse

import torch

import mixwise as mw
from mixwise.data import gaussian_mixture, partition
from mixwise.mixing import MixingMatrix, gram_matrix, metropolis_hastings
from mixwise.models import mlp, seeded
from mixwise.network import Network
from mixwise.policies import Observation, Plan, Stateless
from mixwise.sketch import CountSketch


class WhenApart(Stateless):
    """Mix with W whenever the parameters disagree by more than `limit`; otherwise every node keeps what it has."""

    def __init__(self, W: MixingMatrix, limit: float) -> None:
        self.W, self.limit = W, limit
        self.silent = mw.mixing.from_edge_weights(W.graph, {})  # W = I: no message at all
        self.sketch = CountSketch(50)

    def observes(self, t: int) -> bool:
        """Every mixing starts with a look."""
        return True

    def known_matrices(self) -> tuple[MixingMatrix, ...]:
        """Checked before the first step, so that a wrong matrix is found at once."""
        return (self.W, self.silent)

    def plan(self, t: int, observed: Observation, network: Network) -> Plan:
        """Every process computes the same Γ, and so comes to the same decision."""
        S = network.gather(self.sketch.fresh(t)(observed.parameters))  # (n, k): small rows of all nodes
        apart = gram_matrix(S).trace() / len(S)  # an estimate of the consensus distance
        return Plan((self.W if apart > self.limit else self.silent,))


def main() -> None:
    """Compare it with mixing at every step."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=300)
    steps = options.parse_args().steps

    graph, data = mw.graphs.torus(4, 4), gaussian_mixture(samples=3200, spread=2.0)
    parts = partition.dirichlet(data.train.y, graph.n, alpha=1.0, seed=0)  # nodes that are not alike, but similar
    task = mw.tasks.ModuleTask(
        lambda: seeded(lambda: mlp([20, 64, 10]), 0), data.train, parts, batch=16, test=data.test
    )
    W = metropolis_hastings(graph)
    policies = {"always": mw.policies.Fixed(W)} | {
        f"when apart by {limit:g}": WhenApart(W, limit) for limit in (0.03, 0.1, 0.3, 1.0)
    }
    print(f"{'policy':<22}{'kB per node':>12}{'accuracy':>10}{'worst node':>12}{'consensus distance':>20}")
    for name, policy in policies.items():
        *_, last = mw.train.train(
            task,
            mw.SimulatedNetwork(graph),
            policy,
            mw.algorithms.DSGD(),
            optimizer=lambda rows: torch.optim.SGD(rows, lr=0.1),
            steps=steps,
            record_every=steps,
            evaluate_every=steps,
        )
        v = last.values
        sent = (v["bytes_parameters"] + v["bytes_sketches"]) / 1e3
        shown = f"{sent:>12.0f}{v['accuracy']:>10.1%}{v['accuracy_worst']:>12.1%}{v['consensus_distance']:>20.3g}"
        print(f"{name:<22}{shown}")


if __name__ == "__main__":
    main()
