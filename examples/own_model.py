"""Your own model, your own data, on simulated nodes: two spirals, and every node has seen one arm only.

python examples/own_model.py --steps 400
"""

import argparse

import torch
from torch import nn

import mixwise as mw
from mixwise.data import Dataset, holdout, partition
from mixwise.models import seeded


class Net(nn.Module):
    """Any module will do; this one has nothing to do with mixwise."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the two arms."""
        return self.layers(x)


def spirals(samples: int = 1200) -> Dataset:
    """Points on two arms that wind around each other."""
    stream = torch.Generator().manual_seed(0)
    y = torch.arange(samples) % 2
    angle = 2.5 * torch.pi * torch.rand(samples, generator=stream).sqrt()
    turned = angle + torch.pi * y
    x = torch.stack([turned.cos(), turned.sin()], dim=1) * angle[:, None] / 4
    return Dataset(x + 0.03 * torch.randn(samples, 2, generator=stream), y, classes=2, name="spirals")


def main() -> None:
    """Train with weights that fit the graph, with pairs one after the other, and with weights that fit the data."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=400)
    steps = options.parse_args().steps

    nodes = 8
    train, test = holdout(spirals(), share=0.25, seed=0)
    parts = partition.by_label(train.y, nodes, labels_per_node=1, seed=0)
    print("samples of each arm, node by node:", train.label_counts(parts).tolist())
    task = mw.tasks.ModuleTask(lambda: seeded(Net, 0), train, parts, batch=32, test=test)
    graph = mw.graphs.ring(nodes)
    policies = {
        "Metropolis-Hastings": "metropolis-hastings",
        "pairs, one after the other": "pairs",  # even edges of the ring, then odd ones: as many bytes
        "heterogeneity-aware": mw.HeterogeneityAware(objective="both", regularization=0.02),
    }
    for name, policy in policies.items():
        records = mw.train(
            task,
            graph,
            policy,
            optimizer=lambda rows: torch.optim.Adam(rows, lr=0.01),
            steps=steps,
            record_every=steps,
            evaluate_every=max(1, steps // 4),
        )
        accuracies = [f"{record.values['accuracy']:.1%}" for record in records]
        print(f"{name:<22} accuracy after each quarter: {', '.join(accuracies)}")


if __name__ == "__main__":
    main()
