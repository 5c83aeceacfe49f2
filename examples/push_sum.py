"""Links that go one way: push-sum on a directed graph, where weights whose columns sum to 1 may not exist.

    python examples/push_sum.py --steps 400

Each node splits what it has among those that it can send to. Nodes that hear more collect more mass; push-sum keeps
count of the mass and divides by it, so that all of them still agree on the plain mean.
"""

import argparse

import torch

import mixwise as mw


def main() -> None:
    """Show that plain averaging goes wrong and is rejected, and that push-sum finds the mean."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=400)
    steps = options.parse_args().steps

    # A directed ring of 9 with two shortcuts: nodes 0 and 3 have more to listen to, others have less.
    n = 9
    graph = mw.Graph(n, [(i, (i + 1) % n) for i in range(n)] + [(5, 0), (7, 3)], directed=True)
    W = mw.mixing.uniform_sender(graph)

    X, network = torch.arange(float(n))[:, None], mw.SimulatedNetwork(graph)
    mass = torch.ones(n, 1)
    for _ in range(200):
        X, mass = network.mix(X, W), network.mix(mass, W)
    print(f"numbers 0 to {n - 1}, mean {(n - 1) / 2:g}; after 200 rounds a node holds on average")
    print(f"  without the count of mass {X.mean():.3f}, from {X.min():.3f} to {X.max():.3f}")
    print(
        f"  divided by its mass       {(X / mass).mean():.3f}, from {(X / mass).min():.3f} to {(X / mass).max():.3f}\n"
    )

    task = mw.tasks.random_quadratics(n, dim=10)
    for algorithm in (mw.algorithms.DSGD(), mw.algorithms.PushSum()):
        name = type(algorithm).__name__
        try:
            last = mw.train(
                task,
                graph,
                mw.policies.Fixed(W),
                algorithm,
                optimizer=lambda rows: torch.optim.SGD(rows, lr=0.02 / task.smoothness),
                steps=steps,
                record_every=steps,
                evaluate_every=steps,
            ).last
            print(f"{name}: distance to the optimum {last.values['distance_to_optimum']:.3g} after {steps} steps")
        except mw.MixwiseError as error:
            print(f"{name}: {error}")


if __name__ == "__main__":
    main()
