"""Single rounds of policies and algorithms, without a run around them; and runs that are interrupted."""

import json
from dataclasses import dataclass

import torch

from mixwise.context import Context
from mixwise.mixing import gram_matrix
from mixwise.needs import Needs
from mixwise.policies import as_policy
from mixwise.protocols import Algorithm
from mixwise.round import Round
from mixwise.state import State, decode, encode


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


def gram_of(state: State):
    """Γ of a policy's last look, which may have kept the sketches instead."""
    gram = state.shared["gram"]
    return gram_matrix(state.shared["sketches"]) if gram is None else gram


class Planner:
    """A policy with its state on a network, in this context and for an algorithm with these needs."""

    def __init__(self, policy, network, needs=None, **context):
        self.policy, self.network = as_policy(policy), network
        self.state = self.policy.init(Context(network.graph, needs=needs or Needs(), **context))

    @property
    def gram(self):
        """Γ of the last look."""
        return gram_of(self.state)

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


# --- interruptions ---
def reloaded(state: State, nodes: range) -> State:
    """The state as a checkpoint returns it: through tensors and JSON, sharing no memory."""
    saved = encode(state, nodes)
    tensors = {name: tensor.clone() for name, tensor in saved.tensors.items()}
    return decode(tensors, json.loads(json.dumps(saved.values)), nodes)


def assert_runs_resume(start, before, after=7) -> None:
    """A run saved after `before` steps continues in a new one, made by `start`, bit for bit."""
    training, resumed = start(), start()
    for _ in range(before):
        training.step()
    resumed.load_state(reloaded(training.state(), training.network.nodes))
    for _ in range(after):
        expected, found = training.step().plan, resumed.step().plan
        assert (found is None) == (expected is None)
        if found is not None:
            assert (found.params, len(found.solves)) == (expected.params, len(expected.solves))
        assert torch.equal(resumed.X, training.X)
        assert torch.equal(resumed.models, training.models)
    assert_same_state(training, resumed)


def assert_same_state(*runs) -> None:
    """Two runs remember the same, bit for bit."""
    first, second = (encode(run.state(), run.network.nodes) for run in runs)
    assert (first.values, first.arcs, first.tensors.keys()) == (second.values, second.arcs, second.tensors.keys())
    for name, tensor in first.tensors.items():
        assert torch.equal(second.tensors[name], tensor), name
