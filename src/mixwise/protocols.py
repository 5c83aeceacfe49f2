"""The four things that a run is made of: a task, an algorithm, a policy and a network. Read this file first.

A run trains n models, one per node, which are the rows of X. One round:

    G = task.losses_and_gradients(X)              stochastic gradients, on every node's own data
    algorithm.direction(G)                        e.g. momentum, or gradient tracking
    X′ = one step of a torch optimizer            (or several local steps); U = X − X′
    plan = policy.plan(round)                     mixing matrices, perhaps fitted to sketches of U
    X⁺ = algorithm.mix(round, plan, network)      D-SGD: X⁺ = Wᵀ X′

An algorithm and a policy are frozen values that say *what* is done. What they remember is a `State`, made by `init`
and passed to every call, so that one value can serve several runs. `mixwise.training.driver` takes a round through
these calls, in a simulation and in real processes alike: a process owns a block of m rows, and work on a row never
depends on the block that it is in.

Legend: n nodes; X, X′, G, U (m, d) the rows that this process owns.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch

from mixwise.context import Context
from mixwise.graphs import Graph
from mixwise.layout import Layout
from mixwise.mixing import MixingMatrix
from mixwise.needs import Needs, Provides
from mixwise.parts import family
from mixwise.plan import Plan
from mixwise.round import Round
from mixwise.sketch import Sketch
from mixwise.state import State

if TYPE_CHECKING:
    from mixwise.network.links import Links
    from mixwise.network.measuring import Measuring
    from mixwise.network.traffic import Arrivals, Cargo, Packing, Pending, Traffic
    from mixwise.tasks.others import Others

__all__ = [  # all that a part needs, from one place
    "Algorithm", "Context", "Layout", "Look", "Needs", "Network", "Plan", "Policy", "Provides", "Round", "State",
    "Task",
]  # fmt: skip


class Task:
    """The learning problem: one objective f = (1/n) Σ f_i, split over n nodes.

    Attributes:
        nodes: n.
        layout: where each parameter lies in a row, and the columns of each optimizer group.
        mixed_buffers: (m, b), values besides the parameters that are mixed in place, or None.
        label_counts: (n, classes), how many samples of each label a node holds, or None.
    """

    nodes: int
    layout: Layout
    mixed_buffers: torch.Tensor | None = None
    label_counts: npt.NDArray[np.int64] | None = None

    @abstractmethod
    def initial(self, nodes: Sequence[int]) -> torch.Tensor:
        """Return the starting rows of these nodes, (m, d)."""

    @abstractmethod
    def losses_and_gradients(
        self, X: torch.Tensor, nodes: Sequence[int], step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return losses (m,) and stochastic gradients (m, d) of these nodes at their own rows X (m, d)."""

    @abstractmethod
    def evaluate(self, X: torch.Tensor, others: Others | None = None) -> dict[str, float]:
        """Return metrics over the rows of all nodes: X, and those that `others` (a network) reaches."""

    def state(self) -> State:
        """Return what the task remembers besides the rows, for checkpoints."""
        return State()

    def load_state(self, state: State) -> None:
        """Continue from such a state."""


@family("algorithm")
@dataclass(frozen=True)
class Algorithm:
    """The computation and mixing of a method; subclasses are frozen dataclasses that override `mix` and other methods.

    Attributes:
        needs: what the method needs of the policy, the weights, the optimizer and the driver.
    """

    needs: ClassVar[Needs] = Needs()

    def init(self, X: torch.Tensor, context: Context) -> State:
        """Return the state before the first step at X."""
        return State()

    def direction(self, G: torch.Tensor, state: State, network: Network) -> None:
        """Change G, in place, into the gradients that the optimizer sees; called at every local step."""

    def update(self, round: Round, state: State) -> tuple[torch.Tensor, torch.Tensor]:
        """Return two tensors (m, d) whose difference is the update that is about to be mixed: X and X′."""
        return round.before, round.X_prime

    def rows_to_mix(self, round: Round, state: State) -> torch.Tensor:
        """Return the rows (m, d) that are about to be mixed: X′."""
        return round.X_prime

    def mix(self, round: Round, plan: Plan, state: State, network: Network) -> None:
        """Turn X′ into X⁺, in place; the memory of X may be overwritten."""
        raise NotImplementedError

    def models(self, X: torch.Tensor, state: State) -> torch.Tensor:
        """Return the rows to evaluate and to export as models."""
        return X


@dataclass(frozen=True)
class Look:
    """The part of a mixing that a policy wants to see.

    Attributes:
        sketches: the sketches of the update that it will ask for.
        update: whether it will ask for the update itself, or for sketches that are not listed.
    """

    sketches: tuple[Sketch, ...] = ()
    update: bool = False

    @staticmethod
    def together(looks: Iterable[Look | None]) -> Look | None:
        """Return everything that any of them wants to see."""
        wanted = [look for look in looks if look is not None]
        sketches = tuple(sketch for look in wanted for sketch in look.sketches)
        return Look(sketches, any(look.update for look in wanted)) if wanted else None


@family("policy")
@dataclass(frozen=True)
class Policy:
    """The weights that the nodes mix with at mixing t = 0, 1, 2, …; subclasses are frozen dataclasses.

    Attributes:
        provides: what its plans hold, and whether the weights change.
    """

    @property
    def provides(self) -> Provides:
        """The content of the plans, and whether the weights change."""
        return Provides()

    def init(self, context: Context) -> State:
        """Return the state before the first mixing."""
        return State()

    def matrices(self, state: State) -> tuple[MixingMatrix, ...]:
        """Return the matrices that are known before anything is observed; they are checked before the first step."""
        return ()

    def looks(self, t: int, state: State) -> Look | None:
        """Return what the policy wants to see of mixing t; None costs nothing."""
        return None

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return the plan of a mixing; all processes must come to the same plan."""
        raise NotImplementedError


class Network(Protocol):
    """Moves rows between nodes: the only way in which nodes learn of each other.

    Attributes:
        graph: the communication graph.
        nodes: the nodes whose rows are here.
        traffic: what all nodes have sent, the same number on every process.
        links: how long messages take, in simulations that count time.
        wire_dtype: the precision of rows on the wire; None if they travel as they are.
    """

    graph: Graph
    nodes: range
    traffic: Traffic
    links: Links | None
    wire_dtype: torch.dtype | None

    @property
    def step(self) -> int | None:
        """The step under way, for error messages."""

    def begin(self, step: int) -> None:
        """Begin a step: the nodes that are away in it are decided here, and its messages are numbered from 0."""

    def uncounted(self) -> Network:
        """Return this network, with the same faults and checks, and a counter of its own."""

    def measuring(self) -> Measuring:
        """Return the view for measurements, in which nothing is counted, lost, attacked or checked."""

    def mix(
        self, rows: torch.Tensor, W: MixingMatrix, *, out: torch.Tensor | None = None, packing: Packing | None = None
    ) -> torch.Tensor:
        """Gossip once: the owned rows of Wᵀ X, (m, d), in a new tensor or in `out`, which may be `rows` itself.

        `packing` says how the rows look on the wire, if they travel in fewer bytes.
        """

    def start_mix(self, rows: torch.Tensor, W: MixingMatrix) -> Pending:
        """Start a gossip step and return at once; the rows must not change until it is awaited."""

    def exchange(self, messages: torch.Tensor, graph: Graph, *, cargo: Cargo = ...) -> Arrivals:
        """Send one row along every arc i → j of `graph`.

        Takes the messages of the owned nodes, sorted by (i, j), and returns those that arrive at them, sorted by
        (j, i), with what was lost of them. `cargo` says how they are counted and whether they may be lost.
        """

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the small rows (m, k) of all nodes, (n, k), on every process."""

    def average(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the mean (d,) of the rows of all nodes: an all-reduce, with the same bits on every process."""
