"""Parts outside of the package, declared and not declared: tests name them in recipes as `toys.parts:Name`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from mixwise.algorithms import DSGD
from mixwise.data import Dataset, Partition, Splits
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix, lazy, metropolis_hastings
from mixwise.parts import Count, Positive, Share, Unit, part
from mixwise.protocols import Plan, Policy, State
from mixwise.tasks import QuadraticTask

value = 3


@part("toy-momentum", title="toy momentum of {beta:g}")
@dataclass(frozen=True)
class ToyMomentum(DSGD):
    """Heavy-ball momentum inside of the algorithm."""

    beta: Unit = 0.9

    def init(self, X, context):
        return State(rows={"m": torch.zeros_like(X)})

    def direction(self, G, state, network):
        G.copy_(state.rows["m"].mul_(self.beta).add_(G))


@part("toy-policy", title="lazy weights every {strength} mixings")
@dataclass(frozen=True)
class ToyPolicy(Policy):
    """Metropolis-Hastings weights, lazy ones at every `strength`-th mixing; it counts for itself."""

    strength: Count = 3

    def init(self, context):
        return State(shared={"count": 0}, scratch={"W": metropolis_hastings(context.graph)})

    def plan(self, round, state, network):
        state.shared["count"] += 1
        W = state.scratch["W"]
        return Plan((lazy(W) if state.shared["count"] % self.strength == 0 else W,))


@part("wheel", "graph", title="wheel")
def wheel(n: int, spokes: int = 0) -> Graph:
    rim = [(i, (i + 1) % (n - 1)) for i in range(n - 1)]
    return Graph(n, rim + [(i, n - 1) for i in range(spokes or n - 1)])


@part("cautious", "scheme", title="cautious weights")
def cautious(graph: Graph, rest: Share = 0.5) -> MixingMatrix:
    loops = graph.pattern.rows == graph.pattern.cols
    return MixingMatrix(graph, (1 - rest) * metropolis_hastings(graph).weights + rest * loops)


@part("stripes", "data", title="stripes")
def stripes(samples: Count = 60) -> Splits:
    x = torch.arange(samples * 3.0).reshape(samples, 3) / samples
    whole = Dataset(x, torch.arange(samples) % 2, 2, "stripes")
    return Splits(whole, whole)


@part("bowls", "task", title="bowls")
def bowls(nodes: int, seed: int, *, depth: Positive = 1.0) -> QuadraticTask:
    A = depth * torch.eye(2).expand(nodes, 2, 2)
    return QuadraticTask(A, torch.arange(2.0 * nodes).reshape(nodes, 2), seed=seed)


# --- not declared ---
class Net(nn.Sequential):
    def __init__(self, classes: int, width: Count = 4) -> None:
        super().__init__(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, classes))


def in_turn(samples: int, nodes: int, first: Literal["even", "odd"] = "even") -> Partition:
    shift = 0 if first == "even" else 1
    return Partition(tuple(list(range((node + shift) % nodes, samples, nodes)) for node in range(nodes)))


class Undeclared:
    def __init__(self, share: Unit = 0.5):
        self.share = share
