"""A topology chosen from label counts alone: how often each label occurs on each node.

    python examples/topology_from_labels.py --nodes 24 --neighbors 3

A neighborhood is good if, weighted, it looks like the whole data set: then one gossip step gives every node nearly the
global gradient.
"""

import argparse

import numpy as np
import torch

import mixwise as mw
from mixwise.data import partition


def main() -> None:
    """Compare topologies with the same number of neighbors."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nodes", type=int, default=24)
    options.add_argument("--neighbors", type=int, default=3)
    args = options.parse_args()
    n, k = args.nodes, args.neighbors

    labels = torch.arange(6000) % 10
    parts = partition.dirichlet(labels, n, alpha=0.1, seed=0)
    counts = parts.label_counts(labels, 10)
    shares = counts / counts.sum(axis=1, keepdims=True)
    print("labels on the first nodes:", *counts[:3].tolist(), sep="\n  ")

    learned = mw.mixing.learn_topology(shares, k)
    fitted = mw.minimize_gme(mw.mixing.gram_matrix(shares), learned.graph, regularization=0.01).W
    regular = mw.graphs.random_regular(n, k, seed=0)
    candidates = {
        "ring": mw.mixing.metropolis_hastings(mw.graphs.ring(n)),
        f"random {k}-regular": mw.mixing.metropolis_hastings(regular),
        "  with fitted weights": mw.minimize_gme(mw.mixing.gram_matrix(shares), regular, regularization=0.01).W,
        f"learned, {k} neighbors": learned,
        "  with fitted weights ": fitted,
    }
    before = mw.mixing.heterogeneity(shares)
    print(f"\n{'topology':<26}{'most neighbors':>15}{'p':>8}{'label bias left':>17}")
    for name, W in candidates.items():
        most = int(np.max([len([j for (i, j) in W.edge_weights if i == node]) for node in range(n)]))
        left = mw.mixing.relative_heterogeneity(shares, W) / before
        print(f"{name:<26}{most:>15}{mw.mixing.consensus_factor(W):>8.3f}{left:>17.1%}")


if __name__ == "__main__":
    main()
