"""Mixing weights for a graph: what each scheme costs, how fast it mixes, and what it leaves of the disagreement.

    python examples/weights_for_a_graph.py --graph social --types 4

Every node's gradient belongs to one of a few types of data. Most schemes look at the graph alone; the last two also
look at the gradients.
"""

import argparse

import numpy as np

import mixwise as mw


def main() -> None:
    """Print one line per scheme."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--graph", default="torus:4x4", help="a spec, as for: mixwise graph --help")
    options.add_argument("--types", type=int, default=4, help="how many types of data there are")
    args = options.parse_args()

    graph = mw.graphs.parse(args.graph)
    stream = np.random.default_rng(0)
    # The gradient of a node: that of its type, and a little of its own.
    G = stream.normal(size=(args.types, 50))[stream.integers(args.types, size=graph.n)]
    G += 0.1 * stream.normal(size=G.shape)

    schemes = {
        "Metropolis-Hastings": mw.mixing.metropolis_hastings(graph),
        "maximum degree": mw.mixing.max_degree(graph),
        "optimal spectral gap": mw.mixing.optimal_gap(graph),
        "fitted to the gradients": mw.minimize_gme(mw.mixing.gram_matrix(G), graph).W,
        "fitted, and mixing": mw.minimize_gme(mw.mixing.gram_matrix(G), graph, regularization=0.05).W,
    }
    before = graph.n * mw.mixing.heterogeneity(G)
    print(f"{args.graph}: {graph.n} nodes, {len(graph.edges)} edges, {args.types} types of data\n")
    print(f"{'weights':<25}{'messages':>9}{'p':>8}{'disagreement left':>20}")
    for name, W in schemes.items():
        left = mw.mixing.gradient_mixing_error(G, W) / before
        print(f"{name:<25}{W.messages:>9}{mw.mixing.consensus_factor(W):>8.3f}{left:>20.1%}")
    print("\np: how much closer any rows come to their mean. The last column: these rows, in one gossip step.")


if __name__ == "__main__":
    main()
