"""An algorithm of your own: slow momentum around gossip (after Wang et al. 2020, without their exact averaging).

    python examples/own_algorithm.py --steps 400

    every τ mixings:  v ← β v + (x_then − x),   x ← x_then − v        in between: D-SGD

An algorithm is a frozen dataclass: `init` makes the state before the first step, and `mix` turns the optimizer's X′
into X⁺, in place, given the weights and a network. Checkpoints keep the state without further code.
"""

import argparse
from dataclasses import dataclass

import torch

import mixwise as mw
from mixwise.algorithms import DSGD
from mixwise.protocols import Context, Network, Plan, Round, State


@dataclass(frozen=True)
class SlowMomentum(DSGD):
    """D-SGD whose nodes take, every `period` mixings, a step of momentum along the way they came."""

    beta: float = 0.7
    period: int = 10

    def init(self, X: torch.Tensor, context: Context) -> State:
        """X (m, d): the rows that this process owns, all n of them in a simulation."""
        return State(rows={"then": X.clone(), "v": torch.zeros_like(X)}, shared={"count": 0})

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Mix as D-SGD does; every `period` mixings, take the slow step."""
        super().mix(round, plan, state, network)
        state.shared["count"] += 1
        if state.shared["count"] % self.period == 0:
            then, v = state.rows["then"], state.rows["v"]
            v.mul_(self.beta).add_(then - round.X_prime)
            round.X_prime.copy_(then.sub_(v))


def main() -> None:
    """Compare it with D-SGD and with the usual momentum inside the optimizer."""
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
        last = mw.train(
            task,
            graph,
            mw.HeterogeneityAware(),
            algorithm,
            optimizer=lambda rows, momentum=momentum: torch.optim.SGD(rows, lr=lr, momentum=momentum),
            steps=steps,
            record_every=steps,
            evaluate_every=steps,
        ).last
        print(f"{name:<28}{last.values['distance_to_optimum']:>20.3g}{last.values['consensus_distance']:>20.3g}")


if __name__ == "__main__":
    main()
