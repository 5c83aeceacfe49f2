"""Pairs of neighbors that disagree, found by messages between neighbors only.

Legend: m owned nodes with A arcs to their neighbors, sorted by (i, j); S (m, k) their sketches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Interval

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.graphs.graph import IntArray
from mixwise.mixing import MixingMatrix, metropolis_hastings
from mixwise.mixing.matrix import FloatArray
from mixwise.network.traffic import SKETCHES
from mixwise.parts import Count, part
from mixwise.policies.controls import Permuted, permuted_here
from mixwise.policies.edge_coloring import InPairs, most_rounds
from mixwise.policies.estimates import seeded
from mixwise.protocols import Context, Look, Network, Plan, Round, State
from mixwise.seeding import hashed, stream
from mixwise.sketch import CountSketch, Sketch

_AT_ONCE = 1 << 12  # arcs whose sketches are compared at a time
_MOST_ITERATIONS = 10_000  # each of them a message along every arc
_WHOLE = 2.0**30  # the share 1 in a message of the iterations
_NOTHING, _OFFER, _TAKEN = 0, 1, 2  # what a node tells a neighbor, in one byte; a lost byte says nothing


@part(
    "aware-pairs", title="pairs of neighbors that disagree most, agreed on by offers",
    does="pairs of neighbors that disagree most, found by messages between neighbors only, `rounds` matchings at every "
    "mixing",
)  # fmt: skip
@dataclass(frozen=True)
class AwarePairs(InPairs):
    """At every mixing, `rounds` matchings one after the other, agreed on by neighbors; no node sees more than those.

    Every node sends the sketch s_i of its row to its neighbors. Averaging the pair i, j removes ½‖s_i − s_j‖² of the
    disagreement. Max-product messages, `iterations` of one number along every arc, tell how much of that the two could
    not remove without each other (`advantage`). Then every free node offers itself to the free neighbor where that is
    most, `offers` times; two nodes that offer themselves to each other are a pair. Ties are broken by a hash of the
    seed, the round and the edge. A pair knows its new sketch, (s_i + s_j)/2, without its rows, and sends it on for the
    next round.

    Lost messages never give a node two partners: a neighbor whose sketch is lost is not considered in this round, and
    as an offer counts in both directions or in neither, the two ends of a pair always agree that they are one.

    A round costs k + `iterations` numbers and `offers` bytes along every arc, whatever the number of nodes.
    `HeterogeneityAwareMatchings` gathers all sketches for the same purpose: its matchings are the heaviest ones, these
    nearly so.

    Args:
        rounds: matchings per mixing, at most n or 64. By default as many as the bytes of ordinary gossip allow, where
            every node sends its row to all its neighbors: the mean degree, rounded down, and at most log₂ n rounded up.
        sketch: how a node's row is compressed; a new operator is drawn at each mixing, the same on all nodes.
        offers: how often free nodes offer themselves in a round.
        iterations: messages about what a node could remove without its neighbor. With 0 the pairs are those of a greedy
            matching, heaviest edge first, which leaves more nodes without a partner.
        control: "permuted": the sketches in an order redrawn at every mixing, in simulations, to tell how much of a
            gain is due to the data. `Pairs`, with as many rounds, is the control that predicts the disagreement.
    """

    sketch: Sketch = CountSketch(100)
    offers: Count = 6
    iterations: Annotated[int, Interval(ge=0, le=_MOST_ITERATIONS)] = 12
    control: Permuted | None = None

    def init(self, context: Context) -> State:
        """Check the options, and seed the sketch; algorithms that need symmetric weights allow one matching only."""
        rounds = self.count(context, one_way=True)
        if self.offers > (most := most_rounds(context.graph)):
            raise MixingError(f"offers = {self.offers}; more than {most} change nothing on {context.graph.n} nodes")
        return State(scratch={"rounds": rounds, "seed": context.seed, "sketch": seeded(self.sketch, context)})

    def looks(self, t: int, state: State) -> Look | None:
        """Look at the rows of every mixing, of which no copy is needed."""
        return Look()

    def plan(self, round: Round, state: State, network: Network) -> Plan:
        """Return the matchings of this mixing."""
        # A copy: an exact sketch may be the rows themselves, which only mixing may change.
        S = state.scratch["sketch"].fresh(round.t)(round.rows).to("cpu", torch.float32, copy=True).numpy()
        if self.control is not None:
            S = permuted_here(S, network, state.scratch["seed"], round.t)
        if "near" not in state.scratch:
            state.scratch["near"] = Neighborhood(network.graph, network.nodes)
        near: Neighborhood = state.scratch["near"]
        rounds = []
        for r in range(state.scratch["rounds"]):
            sent = S[near.mine]
            heard = near.heard(sent, network)
            ties = stream(state.scratch["seed"], "ties", round.t, r)
            worth = _squared_distances(sent, heard)
            partner = agree(advantage(worth, near, network, self.iterations), near, network, self.offers, ties)
            paired = near.theirs == partner[near.mine]  # at most one arc per node
            S[near.mine[paired]] = (sent[paired] + heard[paired]) / 2
            rounds.append(near.matrix(partner))
        return Plan(tuple(rounds), optimized=True)


class Neighborhood:
    """The owned nodes and their neighbors, as arrays over the arcs.

    Attributes:
        mine, theirs: (A,), the owned end of each arc, counted from the first owned node, and the neighbor.
        starts: (m,), where the arcs of each owned node start.
    """

    def __init__(self, graph: Graph, nodes: range) -> None:
        senders, receivers, _ = graph.arcs
        own = slice(*np.searchsorted(senders, [nodes.start, nodes.stop]))
        self.graph, self.nodes = graph, nodes
        self.mine, self.theirs = senders[own] - nodes.start, receivers[own]
        self.starts: IntArray = np.searchsorted(self.mine, np.arange(len(nodes)))
        self.degrees: IntArray = np.diff(self.starts, append=len(self.mine))
        ends = np.stack([senders[own], receivers[own]])
        self.edge: IntArray = ends.min(axis=0) * graph.n + ends.max(axis=0)

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the value of the owned end of each arc (A,), of one value per owned node (m,)."""
        return np.repeat(values, self.degrees)

    def heard(self, messages: npt.NDArray[Any], network: Network) -> npt.NDArray[Any]:
        """Send each neighbor its message (A, w) and return what the neighbors sent; NaN, or 0, where it was lost."""
        arrivals = network.exchange(torch.from_numpy(messages), self.graph, cargo=SKETCHES)
        heard: npt.NDArray[Any] = arrivals.rows.numpy()
        if arrivals.lost is not None and heard.dtype.kind == "f":
            heard[arrivals.lost] = np.nan
        return heard

    def matrix(self, partner: IntArray) -> MixingMatrix:
        """W of the pairs; where not all nodes are owned, the rows and columns of those that are."""
        graph, own = self.graph, slice(self.nodes.start, self.nodes.stop)
        if len(self.nodes) == graph.n:
            paired = np.flatnonzero(partner >= 0)
            return metropolis_hastings(Graph(graph.n, np.stack([paired, partner[paired]], 1), labels=graph.labels))
        rows, cols = graph.pattern.rows, graph.pattern.cols
        partners, kept = np.full(graph.n, -1), np.zeros(graph.n)  # of other nodes, neither is known
        partners[own], kept[own] = partner, np.where(partner >= 0, 0.5, 1.0)
        paired = (partners[rows] == cols) | (partners[cols] == rows)
        return MixingMatrix(graph, np.where(rows == cols, kept[rows], 0.5 * paired), nodes=self.nodes)


def advantage(worth: FloatArray, near: Neighborhood, network: Network, iterations: int) -> FloatArray:
    """Return by how much the pair of each arc (A,) removes more than its nodes could without each other.

    Node i tells j what it could remove without j, a_ij = max over its other neighbors l of (w_il − a_li)₊. The pair has
    the advantage b_ij = w_ij − a_ij − a_ji; before the first message that is its worth w. On trees the pairs with b > 0
    are the heaviest matching as soon as the messages have crossed the tree; on bipartite graphs after finitely many
    iterations (Bayati, Shah and Sharma 2008; Sanghavi, Malioutov and Willsky 2011). On others the messages may go back
    and forth around odd cycles; the pairs with the largest b are still good ones.

    An a_ij above w_ij makes no difference, so a message is a share of w_ij, a whole number above 0: no node can claim
    more, and a lost message is 0. A pair that would remove nothing has the advantage −∞.
    """
    worth = np.where(worth > 0, worth, 0.0)  # NaN: a sketch that was lost
    unit = worth / _WHOLE  # of the messages along each arc
    per_unit = np.divide(1.0, unit, out=np.zeros_like(unit), where=unit >= np.finfo(unit.dtype).tiny)
    told = heard = np.zeros_like(worth)  # a_ij of each arc, as a share, and a_ji
    for _ in range(iterations if len(worth) else 0):
        gain = np.maximum(worth - heard, 0)
        best = np.maximum.reduceat(gain, near.starts)
        is_best = gain == near.spread(best)
        single = np.add.reduceat(is_best, near.starts, dtype=np.int32) == 1
        second = np.maximum.reduceat(np.where(is_best, 0, gain), near.starts)
        a = np.minimum(np.where(is_best, near.spread(np.where(single, second, best)), near.spread(best)), worth)
        told = np.rint(a * per_unit)
        message = near.heard(told.astype(np.int32)[:, None] + 1, network)[:, 0]
        heard = np.where(message > 0, (message - 1).astype(worth.dtype) * unit, heard)  # lost: as it was before
    return np.where(worth > 0, worth - (told * unit + heard), -np.inf)


def agree(advantage: FloatArray, near: Neighborhood, network: Network, offers: int, ties: int) -> IntArray:
    """Return the partner of each owned node (m,), −1 if it has none: mutual best offers, repeated among free nodes."""
    m = len(near.nodes)
    partner = np.full(m, -1)
    if not len(advantage):
        return partner
    tie, left = hashed(near.edge, ties), advantage.copy()
    for _ in range(offers):
        left[partner[near.mine] >= 0] = -np.inf
        best = (left > -np.inf) & (left == np.maximum.reduceat(left, near.starts)[near.mine])
        offered = best & (tie == np.maximum.reduceat(np.where(best, tie, 0), near.starts)[near.mine])
        message = np.where(partner[near.mine] >= 0, _TAKEN, np.where(offered, _OFFER, _NOTHING)).astype(np.int8)
        heard = near.heard(message[:, None], network)[:, 0]
        mutual = np.flatnonzero(offered & (heard == _OFFER))
        partner[near.mine[mutual]] = near.theirs[mutual]
        left[heard == _TAKEN] = -np.inf
    return partner


def _squared_distances(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> FloatArray:
    """‖a_i − b_i‖² of the rows, some of them at a time."""
    found = np.empty(len(a), dtype=a.dtype)
    for start in range(0, len(a), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        found[some] = np.square(a[some] - b[some]).sum(axis=1)
    return found
