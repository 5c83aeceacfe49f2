"""An algorithm of your own: slow momentum around gossip (after Wang et al. 2020, without their exact averaging).

    python examples/own_algorithm.py --steps 400

    every τ mixings:  v ← β v + (x_then − x),   x ← x_then − v        in between: D-SGD

An algorithm says what becomes of X, given the optimizer's X′, the weights and a network. What it remembers is rows in
`state`, which checkpoints keep.
"""

import argparse

import torch

import mixwise as mw
from mixwise.algorithms import DSGD
from mixwise.network import Network
from mixwise.policies import Plan


class SlowMomentum(DSGD):
    """D-SGD whose nodes take, every `period` mixings, a step of momentum along the way they came."""

    belongs = {"count": "all"}  # not a row per node, but one number for all

    def __init__(self, beta: float = 0.7, period: int = 10) -> None:
        super().__init__()
        self.beta, self.period = beta, period

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """X (m, d): the rows that this process owns, all n of them in a simulation."""
        if not self.state:
            self.state |= {"then": X_prime.clone(), "v": torch.zeros_like(X_prime), "count": torch.zeros(1)}
        mixed = super().combine(X, X_prime, plan, network, lr)
        self.state["count"] += 1
        if self.state["count"].item() % self.period == 0:
            then, v = self.state["then"], self.state["v"]
            v.mul_(self.beta).add_(then - mixed)
            mixed = then - v
            self.state["then"] = mixed.clone()
        return mixed


def main() -> None:
    """Compare it with D-SGD and with the usual momentum inside of the optimizer."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=400)
    steps = options.parse_args().steps

    graph = mw.graphs.ring(12)
    task = mw.tasks.random_quadratics(graph.n, dim=30, noise=0.01)
    lr = 0.01 / task.smoothness  # small: what differs is how fast they get there
    candidates = {
        "D-SGD": (mw.algorithms.DSGD(), 0.0),
        "D-SGD, momentum 0.7": (mw.algorithms.DSGD(), 0.7),
        "slow momentum 0.7": (SlowMomentum(beta=0.7, period=10), 0.0),
        "quasi-global momentum 0.7": (mw.algorithms.QuasiGlobalMomentum(beta=0.7), 0.0),
    }
    print(f"{'algorithm':<28}{'distance to optimum':>20}{'consensus distance':>20}")
    for name, (algorithm, momentum) in candidates.items():
        *_, last = mw.train.train(
            task,
            mw.SimulatedNetwork(graph),
            mw.HeterogeneityAware(),
            algorithm,
            optimizer=lambda rows, momentum=momentum: torch.optim.SGD(rows, lr=lr, momentum=momentum),
            steps=steps,
            record_every=steps,
            evaluate_every=steps,
        )
        print(f"{name:<28}{last.values['distance_to_optimum']:>20.3g}{last.values['consensus_distance']:>20.3g}")


if __name__ == "__main__":
    main()
