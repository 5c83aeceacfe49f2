"""Single rounds of policies and algorithms, without a run around them."""

from dataclasses import dataclass

import torch

from mixwise.context import Context
from mixwise.needs import Needs
from mixwise.policies import as_policy
from mixwise.protocols import Algorithm
from mixwise.round import Round


@dataclass(frozen=True, eq=False)
class _Shows(Algorithm):
    """An algorithm whose update is given."""

    U: torch.Tensor | None = None

    def update(self, round, state):
        assert self.U is not None, "the policy asked for an update that it did not announce"
        return self.U, torch.zeros_like(self.U)


def observed(t, U=None, G=None, rows=None) -> Round:
    """Mixing t in which the update is U, to the last bit, and `rows` are about to be mixed."""
    rows = U if rows is None else rows
    return Round(t, rows, rows if G is None else G, algorithm=_Shows(U))


class Planner:
    """A policy with its state on a network, as in a run with this context and an algorithm with these needs."""

    def __init__(self, policy, network, needs=None, **context):
        self.policy, self.network = as_policy(policy), network
        self.state = self.policy.init(Context(network.graph, needs=needs or Needs(), **context).at("policy"))

    def looks(self, t) -> bool:
        return self.policy.looks(t, self.state) is not None

    def plan(self, t, U=None, G=None, rows=None):
        return self.policy.plan(observed(t, U, G, rows), self.state, self.network)


def mixed(algorithm, X, X_prime, plan, network, lr=1.0, state=None) -> torch.Tensor:
    """X⁺ of one mixing, in a new tensor."""
    state = algorithm.init(X, Context(network.graph)) if state is None else state
    round = Round(0, X_prime.clone(), X_prime, X.clone(), lr, algorithm=algorithm, state=state)
    algorithm.mix(round, plan, state, network)
    return round.X_prime
