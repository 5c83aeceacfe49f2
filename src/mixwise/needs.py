"""The needs of an algorithm and the offer of a policy, as values that are compared before the first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mixwise.mixing import MixingMatrix

PlanKind: TypeAlias = Literal["weights", "two channels", "a tree", "nothing"]  # what a plan holds


@dataclass(frozen=True)
class Needs:
    """The requirements of an algorithm on the policy, the weights, the optimizer and the driver.

    Attributes:
        plan: what the plans of the policy must hold.
        doubly: whether the weights must be doubly stochastic; otherwise it suffices that the rows sum to 1.
        symmetric, lazy: whether policies must make symmetric weights, and (I + W) / 2 in place of W.
        fixed: whether the weights must be the same at every mixing.
        stable: raises a `MixingError` for weights with which the method diverges.
        optimizer: which optimizers the method is defined for; "sgd" is SGD without momentum.
        one_lr: whether all parameter groups must have the same learning rate.
        local_steps: whether the method allows several optimizer steps per mixing.
        buffers: how buffers (BatchNorm statistics) are mixed: with the weights of the "plan", by a global "average",
            by the algorithm's "own" `mix`, or not at all ("none").
        previous: whether `mix` reads X, the rows at the last mixing; this costs a copy.
        own_update: whether `Algorithm.update` is overridden: the update is not X − X′.
        own_momentum: whether weight decay must pass through the momentum of the algorithm.
        early: whether X is mixed while the gradients are computed: X⁺ = Wᵀ X − U.
    """

    plan: PlanKind = "weights"
    doubly: bool = True
    symmetric: bool = False
    lazy: bool = False
    fixed: bool = False
    stable: Callable[[MixingMatrix], None] | None = None
    optimizer: Literal["any", "sgd", "adam"] = "any"
    one_lr: bool = False
    local_steps: bool = True
    buffers: Literal["plan", "average", "own", "none"] = "plan"
    previous: bool = False
    own_update: bool = False
    own_momentum: bool = False
    early: bool = False


@dataclass(frozen=True)
class Provides:
    """The content of a policy's plans.

    Attributes:
        plan: what its plans hold.
        changes: whether the weights may differ between mixings.
        own_edges: whether it may use edges outside of the network's graph.
    """

    plan: PlanKind = "weights"
    changes: bool = True
    own_edges: bool = False
