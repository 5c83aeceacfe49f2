"""Controls of policies that look at the nodes: the same method, with rows that are not those of the nodes.

Weights that are re-solved from time to time differ from fixed ones in more than the data that they fit: they vary,
and they know which nodes have just been mixed. What a policy gains over its control is due to the data:

    permuted         the same sketches, in an order that is redrawn at every look
    predicted        no sketches: rows in which every mixing leaves noise of its own at every node, Γ⁺ = WᵀΓW + I
    predicted-drift  the same with a drift that stays: B⁺ = Wᵀ(B + I), and Γ is that of B + I, the rows to be mixed

Permuted sketches keep the sizes and angles of the rows and lose where they belong; predicted rows know the graph and
the weights that were used, but nothing of the data.

Legend: n nodes; S (n, k) their sketches; Γ (n, n).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.mixing import GmeProblem, GmeSolution, gram_matrix
from mixwise.mixing.matrix import FloatArray
from mixwise.policies.edge_coloring import mixed_gram
from mixwise.protocols import Context, Look, Network, Plan, Policy, Round, State
from mixwise.seeding import numpy_generator

Permuted: TypeAlias = Literal["permuted"]
Control: TypeAlias = Literal["permuted", "predicted", "predicted-drift"]
Rows = TypeVar("Rows", torch.Tensor, npt.NDArray[Any])

_MOST_NODES = 4096  # for which all of Γ is modeled: 128 MB


def permuted(rows: Rows, seed: int, t: int) -> Rows:
    """Return the rows (n, …) of all nodes in the order drawn for mixing t, the same one on every process."""
    return rows[numpy_generator(seed, "permuted", t).permutation(len(rows))]


def permuted_here(rows: Rows, network: Network, seed: int, t: int) -> Rows:
    """Return the rows of a policy that sees neighbors only in the order drawn for mixing t.

    Raises `MixingError` if other processes own some of the nodes, whose rows such a policy cannot have.
    """
    if len(network.nodes) < network.graph.n:
        raise MixingError(
            f"control = 'permuted': this process owns {len(network.nodes)} of {network.graph.n} nodes, and a policy "
            f"that sends sketches to neighbors only is permuted in simulation; run it in one process"
        )
    return permuted(rows, seed, t)


@dataclass(frozen=True)
class PredictedEstimate:
    """Γ of the rows to be mixed, modeled from the graph and the weights that were used.

    Args:
        drift: whether a node's noise is the same at every mixing.
    """

    drift: bool = False

    def init(self, context: Context) -> State:
        """Return the state before the first mixing, when all rows are equal.

        "model" is Γ, or B with a drift, after the last mixing.
        """
        n = context.graph.n
        if n > _MOST_NODES:
            raise MixingError(
                f"control = 'predicted' models Γ of {n} × {n} numbers, allowed are {_MOST_NODES} nodes; use 'permuted'"
            )
        return State(shared={"unsettled": False, "gram": None, "model": np.zeros((n, n))})

    def wants(self, t: int, state: State) -> Look | None:
        """Look at nothing."""
        return None

    def look(self, round: Round, state: State, network: Network) -> None:
        """Predict Γ."""
        rows = state.shared["model"] + np.eye(network.graph.n)
        state.shared["gram"] = gram_matrix(rows) if self.drift else _centered(_centered(rows).T)

    def solve(self, graph: Graph, regularization: float, state: State) -> GmeSolution:
        """Return the best weights on a graph for the last prediction."""
        problem: GmeProblem = state.scratch["problem of"](graph)
        return problem.solve(state.shared["gram"], regularization)

    def mixed(self, plan: Plan, state: State) -> None:
        """Add the noise of this mixing, and mix as the plan says."""
        model: FloatArray = state.shared["model"]
        model = model + np.eye(len(model))
        for W in plan.params:
            W.need_whole("control = 'predicted'")
            model = W.incoming @ model if self.drift else mixed_gram(model, W)
        # What all nodes have in common would grow without end, and does not matter.
        state.shared["model"] = _centered(model) if self.drift else _centered(_centered(model).T)


def _centered(rows: FloatArray) -> FloatArray:
    centered: FloatArray = rows - rows.mean(axis=0)
    return centered


# --- controls in comparisons ---
def controls(policy: Any) -> Iterator[str | None]:
    """Yield the control of each part of a policy that looks at the nodes: None if it sees their own rows."""
    if isinstance(policy, tuple):
        for each in policy:
            yield from controls(each)
    elif isinstance(policy, Policy):
        for field in fields(policy):
            value = getattr(policy, field.name)
            if field.name == "control" and isinstance(value, str | None):
                yield value
            yield from controls(value)


def uncontrolled(policy: Any) -> Any:
    """Return the policy of which this one is a control: the same, with the nodes' own rows."""
    if isinstance(policy, tuple):
        return tuple(map(uncontrolled, policy))
    if not any(controls(policy)):
        return policy
    values = {field.name: uncontrolled(getattr(policy, field.name)) for field in fields(policy)}
    return replace(policy, **values | ({"control": None} if "control" in values else {}))
