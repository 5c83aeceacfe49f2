"""A policy of your own: stay silent while the nodes agree, and mix when they have drifted apart.

    python examples/own_policy.py --steps 300

A policy is a frozen dataclass that answers each mixing with a `Plan`: the matrices to mix with. It may look at the
nodes' rows through sketches, which cost fifty numbers per node instead of a whole row.
"""

import argparse
from dataclasses import dataclass

import torch

import mixwise as mw
from mixwise.data import gaussian_mixture, partition
from mixwise.mixing import MixingMatrix, gram_matrix, metropolis_hastings
from mixwise.models import mlp, seeded
from mixwise.policies import Look, Policy
from mixwise.protocols import Context, Network, Plan, Round, State
from mixwise.sketch import CountSketch


@dataclass(frozen=True)
class WhenApart(Policy):
    """Mix with Metropolis-Hastings weights when the parameters disagree by more than `limit`; otherwise do not mix."""

    limit: float = 0.1

    def init(self, context: Context) -> State:
        """Make both matrices for the graph of the run; scratch values are derived, so checkpoints do not hold them."""
        silent = mw.mixing.from_edge_weights(context.graph, {})  # W = I: no message at all
        return State(scratch={"W": metropolis_hastings(context.graph), "silent": silent})

    def matrices(self, state: State) -> tuple[MixingMatrix, ...]:
        """Return what is known before the first step, so that the algorithm can reject it at once."""
        return state.scratch["W"], state.scratch["silent"]

    def looks(self, t: int, state: State) -> Look:
        """Look at every mixing, but not at the updates: no copy of the rows is needed."""
        return Look()

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Every process computes the same Γ, and so comes to the same decision."""
        S = network.gather(CountSketch(50).fresh(round.t)(round.rows))  # (n, k): small rows of all nodes
        apart = gram_matrix(S).trace() / len(S)  # an estimate of the consensus distance
        return Plan((state.scratch["W" if apart > self.limit else "silent"],))


def main() -> None:
    """Compare it with mixing at every step."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=300)
    steps = options.parse_args().steps

    graph, data = mw.graphs.torus(4, 4), gaussian_mixture(samples=3200, spread=2.0)
    parts = partition.dirichlet(data.train.y, graph.n, alpha=1.0, seed=0)  # the data of the nodes differ, but not much
    task = mw.tasks.ModuleTask(
        lambda: seeded(lambda: mlp([20, 64, 10]), 0), data.train, parts, batch=16, test=data.test
    )
    policies = {"always": mw.policies.Fixed("metropolis-hastings")} | {
        f"when apart by {limit:g}": WhenApart(limit) for limit in (0.03, 0.1, 0.3, 1.0)
    }
    print(f"{'policy':<22}{'kB per node':>12}{'accuracy':>10}{'worst node':>12}{'consensus distance':>20}")
    for name, policy in policies.items():
        last = mw.train(
            task,
            graph,
            policy,
            optimizer=lambda rows: torch.optim.SGD(rows, lr=0.1),
            steps=steps,
            record_every=steps,
            evaluate_every=steps,
        ).last
        v = last.values
        sent = (v["bytes_parameters"] + v["bytes_sketches"]) / 1e3
        shown = f"{sent:>12.0f}{v['accuracy']:>10.1%}{v['accuracy_worst']:>12.1%}{v['consensus_distance']:>20.3g}"
        print(f"{name:<22}{shown}")


if __name__ == "__main__":
    main()
