"""Steps of the real algorithms, and the constants of the consensus recursion.

Legend: X, G (n, d) rows of nodes, float64; W a MixingMatrix; eta a step size.
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from builders import random_rows, simulated
from mixwise.algorithms import DSGD
from mixwise.graphs import Graph
from mixwise.layout import Layout
from mixwise.mixing import MixingMatrix, consensus_distance
from mixwise.network import SimulatedNetwork
from mixwise.plan import Plan
from mixwise.policies import Fixed
from mixwise.protocols import Task
from planning import mixed
from theory.instances import Gradients


class GradientField(Task):
    """A task that is given by its gradients and its start; the theory asks for nothing else."""

    def __init__(self, start: torch.Tensor, gradients: Gradients) -> None:
        self.start, self.gradients = start, gradients
        self.nodes, self.layout = len(start), Layout(start.shape[1])

    def initial(self, nodes):
        return self.start[list(nodes)].clone()

    def losses_and_gradients(self, X, nodes, step):
        return torch.zeros(len(nodes), dtype=X.dtype), self.gradients(X)

    def evaluate(self, X, others=None):
        return {}


def trajectory(X, gradients: Gradients, graph: Graph, policy, rates, algorithm=None) -> list[torch.Tensor]:
    """X⁽⁰⁾, X⁽¹⁾, … of the training loop, with step size rates[t] at step t."""
    schedule = lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, [*rates, 0.0].__getitem__)  # noqa: E731
    training = simulated(policy, algorithm, graph, task=GradientField(X, gradients), lr=1.0, scheduler=schedule)
    points = [X.clone()]
    for _ in rates:
        training.step()
        points.append(training.X.clone())
    return points


def one_step(X: torch.Tensor, gradients: Gradients, W: MixingMatrix, eta: float) -> torch.Tensor:
    """X⁺ of one step of D-SGD in the training loop."""
    return trajectory(X, gradients, W.graph, Fixed(W), [eta])[-1]


def iterate(X, gradients: Gradients, W: MixingMatrix, eta, steps: int) -> Iterator[torch.Tensor]:
    """X⁽⁰⁾, …, X⁽ˢᵗᵉᵖˢ⁾ of D-SGD with a fixed W, without the loop's records: for long runs."""
    algorithm, plan, network = DSGD(), Plan((W,)), SimulatedNetwork(W.graph)
    yield X
    for _ in range(steps):
        X = mixed(algorithm, X, X - eta * gradients(X), plan, network)
        yield X


# --- the consensus recursion ---
# The constants of the consensus recursion Ξ_t ≤ (1 − p/2) Ξ_{t−1} + η² (D e_{t−1} + A), as its proof gives them.
#
# The proof in short, with X̃ = X − X̄, Δ = ∂f(X) − ∂f(X̄) and Young's inequality twice:
#     E‖X̃⁺‖² = T₁ + T₂,   T₂ ≤ (1 − p) η² E‖∂F(X, ξ) − ∂f(X)‖²
#     T₁ ≤ (1 + β₁)(1 + β₂) (1 − p) ‖X̃‖² + (1 + β₁)(1 + 1/β₂) (1 − p) η² ‖Δ‖² + (1 + 1/β₁) η² n ζ′²
#     β₁ = p / (8(1 − p)),  β₂ = p / (8 − 7p),  ‖Δ‖ ≤ L ‖X̃‖,  so that 1 + 1/β₁ = (8 − 7p)/p.


def step_bound(p: float, L: float) -> float:
    """The largest η for which the factor of Ξ is at most 1 − p/2 (D-SGD); it is at least p / (√32 L)."""
    return math.sqrt(p / 4 / ((1 - 7 * p / 8) * (8 - 6 * p) / p + 6 * (1 - p))) / L


def mixing_constant(p: float) -> float:
    """1 + 1/β₁: how much of the relative heterogeneity arrives."""
    return (8 - 7 * p) / p


def expected_consensus(points: Iterable[torch.Tensor]) -> float:
    """The mean of (1/n)‖X − X̄‖² over equally likely X."""
    distances = [consensus_distance(X) for X in points]
    return sum(distances) / len(distances)


def expected_after(task, matrices, chances, X: torch.Tensor, eta: float) -> float:
    """E Ξ⁺ of a step of D-SGD over all ξ and W, exactly."""
    after = [expected_consensus(one_step(X, gradients, W, eta) for gradients in task.outcomes()) for W in matrices]
    return float(np.dot(chances, after))


def spread_points(mean: torch.Tensor, n: int, size: float, seed: int) -> torch.Tensor:
    """Rows around `mean`, at distances of this size from it; their mean is exactly `mean`."""
    rows = random_rows(n, len(mean), seed)
    return mean + size * (rows - rows.mean(0))
