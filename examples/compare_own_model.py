"""Compare gossip methods on your own model and data, over several seeds: a table, curves and a report.

python examples/compare_own_model.py --steps 200 --seeds 5 --out runs/moons
"""

import argparse

import torch
from torch import nn

import mixwise as mw
from mixwise.data import Dataset, holdout, partition
from mixwise.models import seeded


def task(seed: int) -> mw.tasks.ModuleTask:
    """Two moons on 16 nodes, one moon per node; data, partition and start depend on the seed."""
    draws = torch.Generator().manual_seed(seed)
    angle, label = torch.rand(800, generator=draws) * torch.pi, torch.arange(800) % 2
    points = torch.stack([angle.cos() + label, angle.sin() * (1 - 2 * label) + 0.5 * label], dim=1)
    train, test = holdout(Dataset(points, label, classes=2, name="moons"), share=0.25, seed=seed)
    parts = partition.by_label(train.y, nodes=16, labels_per_node=1, seed=seed)
    model = seeded(lambda: nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2)), seed)
    return mw.tasks.ModuleTask(lambda: model, train, parts, batch=16, test=test, seed=seed)


def main() -> None:
    """Compare two policies and an algorithm; full averaging is the yardstick."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--out", help="by default runs/compare/TIME")
    given = options.parse_args()

    run = mw.compare(
        task,
        "ring:16",
        methods={
            "gossip": "metropolis-hastings",
            "pairs": "pairs",
            "quasi-global": {
                "policy": "pairs",
                "algorithm": mw.algorithms.QuasiGlobalMomentum(),  # with momentum of its own
                "optimizer": lambda rows: torch.optim.SGD(rows, lr=0.1),
            },
            "average": "full-averaging",
        },
        optimizer=lambda rows: torch.optim.SGD(rows, lr=0.1, momentum=0.9),
        steps=given.steps,
        seeds=range(given.seeds),
        out=given.out,
    )
    print(run)
    print(run.folder / "report.html")


if __name__ == "__main__":
    main()
