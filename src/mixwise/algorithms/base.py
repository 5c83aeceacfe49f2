"""What an algorithm is: what is computed and mixed, given the rows this process owns and a network.

Legend: X (m, d) parameters at the last mixing, X′ what the optimizer has made of them since (one step, or several local
ones), U = X − X′ the update, G (m, d) gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch

from mixwise.errors import TrainingError
from mixwise.mixing import MixingMatrix
from mixwise.network import Network
from mixwise.policies import Plan, Policy
from mixwise.policies.plan import Gives

Belongs: TypeAlias = Literal["nodes", "arcs", "all"]  # whose a tensor is that is remembered between mixings

_REMEDIES: dict[Gives, str] = {
    "weights": "weights such as metropolis-hastings",
    "two channels": "a policy with one matrix for parameters and one for updates: decoupled, d-cliques",
    "a tree": "a policy that gives a spanning tree: tree, heterogeneity-aware-tree",
    "nothing": "policy: none",
}


class Algorithm:
    """Turns the optimizer's step into the step of the decentralized method; subclasses say how.

    Attributes:
        mixes_with: what it needs of a policy's plans.
        needs_previous: whether `combine` looks at X, which costs a copy of the rows.
        mixes_steps: whether `update` is X − X′; then its sketches can be had without it.
        mixes_early: whether X is mixed while the gradients are computed, and not X′ after them: X⁺ = Wᵀ X − U.
        needs_symmetric, needs_lazy: what it asks of weights that a policy makes: W = Wᵀ, and (I + W) / 2 in place of W.
        owns_momentum: whether it has its own momentum, so that the optimizer must be SGD without one; `direction` then
            sees gradients with weight decay.
        state: tensors that it remembers between mixings, by name; all of them are checkpointed.
        belongs: which of them are not one row per owned node but, sorted by receiver, one per arc into the owned nodes
            ("arcs"), or the same on all processes ("all").
    """

    mixes_with: Gives = "weights"
    needs_previous = False
    mixes_steps = True
    mixes_early = False
    needs_symmetric = False
    needs_lazy = False
    owns_momentum = False
    belongs: Mapping[str, Belongs] = {}

    def __init__(self) -> None:
        self.state: dict[str, torch.Tensor] = {}

    def check_optimizer(self, optimizer: torch.optim.Optimizer, local_steps: int) -> None:
        """Refuse an optimizer, or a number of local steps, that the method is not defined for."""
        if self.owns_momentum:
            _check_plain_sgd(type(self).__name__, optimizer)

    def check_policy(self, policy: Policy) -> None:
        """Refuse a policy that gives something else than the algorithm mixes with."""
        if policy.gives != self.mixes_with:
            raise TrainingError(
                f"{type(self).__name__} and {type(policy).__name__} do not go together: the policy gives "
                f"{policy.gives}, the algorithm mixes with {self.mixes_with}; take {_REMEDIES[self.mixes_with]}"
            )

    def check_weights(self, W: MixingMatrix) -> None:
        """Refuse a matrix that the method cannot work with; called for every W before it is used."""
        if W.kind != "doubly":
            raise TrainingError(
                f'the weights have kind="{W.kind}", so mixing would move the mean of the nodes; '
                f"take doubly stochastic weights, or an algorithm that corrects for it (push-sum)"
            )

    def direction(self, G: torch.Tensor, network: Network) -> None:
        """Change G, in place, into what the optimizer shall see; called at every local step."""

    def update(self, X: torch.Tensor, X_prime: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """U (m, d), new or in `out`: the update that is about to be mixed; heterogeneity-aware weights look at it."""
        return torch.sub(X, X_prime, out=out)

    def rows_to_mix(self, X: torch.Tensor, X_prime: torch.Tensor) -> torch.Tensor:
        """The rows (m, d) that `combine` is about to mix; weights made for the parameters look at them."""
        return X_prime

    def combine(
        self, X: torch.Tensor, X_prime: torch.Tensor, plan: Plan, network: Network, lr: float = 1.0
    ) -> torch.Tensor:
        """The new parameters (m, d); it may use the memory of X and X′ for them.

        Args:
            X: parameters at the last mixing; only if `needs_previous`, otherwise X′.
            X_prime: parameters after the local steps.
            plan: the weights of this mixing.
            network: the way to the other nodes.
            lr: the sum of the step sizes since the last mixing.
        """
        raise NotImplementedError

    def check_buffers(self) -> None:
        """Refuse buffers that are to be mixed, if the method has no way to do it."""

    def mix_buffers(self, B: torch.Tensor, plan: Plan, network: Network) -> None:
        """Mix B (m, b), what the models carry besides parameters, in place, as `combine` will mix the rows."""
        mix_rounds(B, plan.params, network, in_place=True)

    def model_rows(self, X: torch.Tensor) -> torch.Tensor:
        """The rows to judge and to keep as models."""
        return X

    def arcs_into(self, nodes: range) -> list[int]:
        """How many of the rows that belong to "arcs" each of these nodes has."""
        return [0] * len(nodes)


def mix_rounds(
    rows: torch.Tensor, rounds: tuple[MixingMatrix, ...], network: Network, *, in_place: bool = False
) -> torch.Tensor:
    """Mix with one matrix after the other, one communication round each."""
    for W in rounds:
        rows = network.mix(rows, W, out=rows if in_place else None)
        in_place = True  # what a round has made is ours
    return rows


def one_matrix(plan: Plan, name: str) -> MixingMatrix:
    """The matrix of a plan for methods that mix in one round with one matrix."""
    if plan.updates is not None or len(plan.params) != 1:
        raise TrainingError(
            f"{name} mixes in one round with one matrix; take a policy that gives one matrix per mixing"
        )
    return plan.params[0]


def one_channel(plan: Plan, name: str) -> tuple[MixingMatrix, ...]:
    """The rounds of a plan for methods that mix one thing, in one or several rounds."""
    if plan.updates is not None:
        raise TrainingError(f"{name} mixes one thing; a policy with a second channel needs algorithm: decoupled")
    if not plan.params:
        raise TrainingError(f"{name} needs mixing weights; a policy that chooses a tree is for algorithm: relay")
    return plan.params


def _check_plain_sgd(name: str, optimizer: torch.optim.Optimizer) -> None:
    momenta = [group.get("momentum", 0) for group in optimizer.param_groups]
    if not isinstance(optimizer, torch.optim.SGD) or any(momenta):
        kind = f"{type(optimizer).__name__}{' with momentum' if any(momenta) else ''}"
        raise TrainingError(
            f"{name} has its own momentum, so {kind} would count it twice; take SGD with momentum 0 as the optimizer"
        )
