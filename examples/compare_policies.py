"""Mixing policies side by side on digits: 16 nodes on a ring, two digits each, the same bytes of parameters.

python examples/compare_policies.py --steps 120
"""

import argparse

import torch

import mixwise as mw
from mixwise.data import digits, partition
from mixwise.models import mlp, seeded


def main() -> None:
    """Print accuracy, consensus and traffic of every policy."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=120)
    steps = options.parse_args().steps

    data, graph = digits(), mw.graphs.ring(16)
    parts = partition.by_label(data.train.y, graph.n, labels_per_node=2, seed=0)
    task = mw.tasks.ModuleTask(
        lambda: seeded(lambda: mlp([64, 32, 10]), 0), data.train, parts, batch=16, test=data.test
    )
    policies = {
        "Metropolis-Hastings": "metropolis-hastings",
        "optimal gap": "optimal-gap",
        "random matchings": mw.policies.Matchings(),
        "HA-DSGD (the paper's)": mw.HeterogeneityAware(alternate_with="metropolis-hastings"),
        "HA, both objectives": mw.HeterogeneityAware(objective="both", regularization=0.02),
        "auto": "auto",
        "full averaging": "full-averaging",
    }
    print(f"{'policy':<23}{'accuracy':>9}{'worst node':>12}{'p':>7}{'GME left':>10}{'MB sent':>9}")
    for name, policy in policies.items():
        last = mw.train(
            task,
            graph,
            policy,
            optimizer=lambda rows: torch.optim.SGD(rows, lr=0.05, momentum=0.9),
            steps=steps,
            record_every=steps,
            evaluate_every=steps,
        ).last
        v = last.values
        sent = (v["bytes_parameters"] + v["bytes_sketches"]) / 1e6
        print(
            f"{name:<23}{v['accuracy']:>9.1%}{v['accuracy_worst']:>12.1%}{abs(v['consensus_factor']):>7.2f}"
            f"{v['gradient_mixing_error_relative']:>10.1%}{sent:>9.2f}"
        )
    print("\nGME left: the share of the gradients' disagreement that the last weights leave; optimized ones, if there")
    print("are any. MB per node.")


if __name__ == "__main__":
    main()
