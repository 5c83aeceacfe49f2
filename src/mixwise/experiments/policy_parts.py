"""The declarations of the policies, until the classes in `mixwise.policies` are declared themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import Ge, Interval, Len

from mixwise import policies
from mixwise.data.partition import IntArray
from mixwise.errors import ConfigError
from mixwise.graphs import Graph, d_cliques, one_peer_exponential, spanning_tree
from mixwise.mixing import MixingMatrix, base_graph, clique_averaging, learn_topology, metropolis_hastings, uniform
from mixwise.parts import FAMILIES, Count, NonNegative, Probability, Share, Unit, family, part, words
from mixwise.policies import Policy
from mixwise.seeding import stream
from mixwise.sketch import CountSketch, ExactSketch, Sketch

Scheme = Annotated[Callable[[Graph], MixingMatrix], FAMILIES["scheme"]]


@dataclass(frozen=True)
class Places:
    """Nodes placed on a graph, which a policy is built for; weights are made for the places and follow the nodes.

    Attributes:
        places: the graph of the places.
        order: the node at each place.
        seed: of the run.
        label_counts: (n, classes), of the nodes; None if the task has no labels.
        symmetric: whether the algorithm needs symmetric weights.
    """

    places: Graph
    order: list[int]
    seed: int
    label_counts: IntArray | None = None
    symmetric: bool = False

    @property
    def graph(self) -> Graph:
        """The graph of the nodes."""
        return self.places.permuted(self.order)

    @property
    def stream(self) -> int:
        """The seed of the policies."""
        return stream(self.seed, "policy")

    def labels(self, policy: str) -> IntArray:
        """The label counts, which this policy needs."""
        if self.label_counts is None:
            raise ConfigError(f"policy.kind: {policy} needs a task with labels; take task.kind: classification")
        return self.label_counts

    def sketch(self, sketch: Sketch) -> Sketch:
        """The sketch with the seed of the run."""
        return sketch if isinstance(sketch, ExactSketch) else replace(sketch, seed=self.stream)  # type: ignore[type-var]


@family("policy")
@dataclass(frozen=True)
class PolicyPart:
    """A policy of a recipe."""

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        raise NotImplementedError


Several = Annotated[tuple[PolicyPart, ...], Len(1)]


@part("fixed", title="the same weights at every mixing", does="the same weights at every mixing")
@dataclass(frozen=True)
class Fixed(PolicyPart):
    """The same weights at every mixing; a scheme's name alone stands for this."""

    weights: Scheme

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        return policies.Fixed(self.weights(at.places).permuted(at.order))

    def describe(self) -> str:
        """The words of the scheme."""
        return words(self.weights)


@part(
    "auto", title="auto: pairs of nodes chosen by their disagreement, anew at every mixing",
    does="the policy that did best in the study of mixing policies",
)  # fmt: skip
class Auto(PolicyPart):
    """The gossip policy that did best in docs/studies/mixing-policies.md."""

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        return policies.auto_policy(at.graph, symmetric=at.symmetric, sketch=at.sketch(CountSketch()))


@part("none", title="no gossip weights", does="no weights, for `algorithm: all-reduce` and `local-sgd`")
class NoMixing(PolicyPart):
    """No weights: for algorithms that average over all nodes."""

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        return policies.NoMixing()


@part("random", title="one of several at random", does="one of several policies, drawn at random at every mixing")
@dataclass(frozen=True)
class RandomChoice(PolicyPart):
    """One of several policies, drawn at random at every mixing."""

    policies: Several
    probabilities: tuple[float, ...] | None = None

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        chances = None if self.probabilities is None else list(self.probabilities)
        return policies.RandomChoice([policy.build(at) for policy in self.policies], chances, at.stream)

    def describe(self) -> str:
        """The words of all of them."""
        return "at random one of: " + "; ".join(map(words, self.policies))


@part("alternating", title="several in turn", does="several policies in turn")
@dataclass(frozen=True)
class Alternating(PolicyPart):
    """Policies that take turns."""

    policies: Several

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        return policies.Alternating(*(policy.build(at) for policy in self.policies))

    def describe(self) -> str:
        """The words of all of them."""
        return "in turn " + " and ".join(map(words, self.policies))


@part("product", title="several in a row", does="several policies at every mixing, one communication round each")
@dataclass(frozen=True)
class Product(PolicyPart):
    """Policies one after the other at every mixing, one communication round each."""

    policies: Several

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        return policies.Product(*(policy.build(at) for policy in self.policies))

    def describe(self) -> str:
        """The words of all of them."""
        return "one after the other " + ", then ".join(map(words, self.policies))


@part(
    "decoupled", title="parameters: {params}; updates: {updates}",
    does="one policy for the parameters, one for the updates, for `algorithm: decoupled`",
)  # fmt: skip
@dataclass(frozen=True)
class Decoupled(PolicyPart):
    """One policy for the parameters, one for the updates; for `algorithm: decoupled`."""

    params: PolicyPart
    updates: PolicyPart

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        return policies.Decoupled(self.params.build(at), self.updates.build(at))


@part(
    "cycle",
    title="a cycle of graphs ({sequence})",
    does="a sequence of graphs in turn; `peers` is k of the Base-(k + 1) graphs",
)
@dataclass(frozen=True)
class Cycle(PolicyPart):
    """A sequence of graphs in turn; `peers` is k of the Base-(k+1) graphs."""

    sequence: Literal["one-peer-exponential", "base-graph"]
    peers: Count = 1

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        n = at.places.n
        if self.sequence == "base-graph":
            matrices = list(base_graph(n, self.peers))
        else:
            matrices = [uniform(graph) for graph in one_peer_exponential(n)]
        return policies.Cycle([W.permuted(at.order) for W in matrices])


@part(
    "matchings",
    title="a random matching at every mixing",
    does="a random maximal matching of the graph at every mixing",
)
class Matchings(PolicyPart):
    """A random maximal matching of the graph at every mixing."""

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        return policies.Matchings(at.graph, at.stream)


@part(
    "matcha", title="MATCHA: random matchings with a budget of {budget:g}", cite="Wang et al. 2019",
    does="a share of the graph's matchings, drawn with optimized probabilities",
)  # fmt: skip
@dataclass(frozen=True)
class Matcha(PolicyPart):
    """A share of the graph's matchings, drawn with optimized probabilities."""

    budget: Share = 0.5

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        return policies.Matcha(at.graph, self.budget, at.stream)


@part(
    "edge-sampling",
    title="each edge is there with probability {probability:g}, Metropolis-Hastings on what is there",
    does="every edge with a probability, drawn anew at every mixing; Metropolis-Hastings weights on the rest",
)  # fmt: skip
@dataclass(frozen=True)
class EdgeSampling(PolicyPart):
    """Every edge with a probability, at every mixing; Metropolis-Hastings weights on the edges that were drawn."""

    probability: Probability = 0.5

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        return policies.EdgeSampling(at.graph, self.probability, at.stream)


@part(
    "d-cliques", title="cliques of {size} that together hold all labels", cite="Bellet et al. 2022",
    does="cliques whose labels look like the whole data set, for `algorithm: decoupled`",
)  # fmt: skip
@dataclass(frozen=True)
class DCliques(PolicyPart):
    """Cliques whose labels look like the whole data set, updates averaged inside; for `algorithm: decoupled`."""

    size: Count = 4
    between: Literal["ring", "full"] = "ring"

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        found = d_cliques(at.labels("d-cliques"), self.size, at.stream, self.between)
        updates = policies.Fixed(clique_averaging(found.cliques, found.graph))
        return policies.Decoupled(params=policies.Fixed(metropolis_hastings(found.graph)), updates=updates)


@part(
    "learned-topology", title="a topology learned from {source}, about {neighbors} neighbors each",
    cite="Le Bars et al. 2023",
    does="a sparse topology learned by Frank-Wolfe from the labels or the updates of the nodes",
)  # fmt: skip
@dataclass(frozen=True)
class LearnedTopology(PolicyPart):
    """A sparse topology learned by Frank-Wolfe, from the label shares of the nodes or from their updates."""

    source: Literal["labels", "updates"] = "labels"
    neighbors: Count = 2
    regularization: NonNegative = 0.1
    inside: bool = False

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        if self.source == "updates":
            return policies.LearnedTopology(self.neighbors, regularization=self.regularization, inside=self.inside)
        counts = at.labels("learned-topology")
        shares = counts / counts.sum(axis=1, keepdims=True)
        allowed = at.graph if self.inside else None
        return policies.Fixed(learn_topology(shares, self.neighbors, self.regularization, allowed=allowed))


@part("tree", title="a spanning tree ({shape})", does="a spanning tree of the graph, for `algorithm: relay`")
@dataclass(frozen=True)
class Tree(PolicyPart):
    """A spanning tree of the graph, for `algorithm: relay`."""

    shape: Literal["bfs", "chain"] = "bfs"

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        return policies.FixedTree(spanning_tree(at.places, self.shape).permuted(at.order))


@part(
    "heterogeneity-aware", title="weights optimized from {sketch}", cite="the paper, Algorithm HA-DSGD",
    does="weights re-optimized from sketches of the updates",
)  # fmt: skip
@dataclass(frozen=True)
class HeterogeneityAware(PolicyPart):
    """Weights re-optimized from sketches of the updates."""

    period: Count = 1
    sketch: Sketch = CountSketch()
    objective: Literal["updates", "parameters", "both"] = "updates"
    balance: NonNegative = 0.1
    alternate_with: PolicyPart | None = None
    regularization: NonNegative = 0.0
    smoothing: Unit = 0.0
    symmetric: bool = False
    growth: Annotated[float, Ge(1)] | None = None
    drop_below: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0
    graphs: PolicyPart | None = None
    stochastic: Literal["doubly", "sender"] = "doubly"
    solver: Literal["auto", "piqp", "cvxpy", "local"] = "auto"
    tolerance: Annotated[float, Interval(gt=0, lt=1)] = 1e-3
    max_iterations: Count = 5000

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        return policies.HeterogeneityAware(
            self.period,
            sketch=at.sketch(self.sketch),
            objective=self.objective,
            balance=self.balance,
            alternate_with=None if self.alternate_with is None else self.alternate_with.build(at),
            regularization=self.regularization,
            smoothing=self.smoothing,
            symmetric=self.symmetric,
            growth=self.growth,
            drop_below=self.drop_below,
            graphs=None if self.graphs is None else self.graphs.build(at),
            kind=self.stochastic,
            solver=self.solver,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
        )

    def describe(self) -> str:
        """How often, from what, and in turn with what."""
        often = "at every mixing" if self.period == 1 else f"every {self.period} mixings"
        turn = "" if self.alternate_with is None else f", in turn with {words(self.alternate_with)}"
        return f"weights optimized {often} from {words(self.sketch)}{turn}"


@part(
    "heterogeneity-aware-matchings",
    title="matchings that remove most of the disagreement, chosen anew at every mixing",
    does="matchings chosen by how far apart the nodes are, `rounds` of them at every mixing; by default as many as fit "
    "into the bytes of ordinary gossip",
)  # fmt: skip
@dataclass(frozen=True)
class HeterogeneityAwareMatchings(PolicyPart):
    """Matchings chosen by how far apart the nodes are, `rounds` of them at every mixing."""

    rounds: Count | None = None
    sketch: Sketch = CountSketch()
    objective: Literal["updates", "parameters", "both"] = "parameters"
    balance: NonNegative = 0.1

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        return policies.HeterogeneityAwareMatchings(
            self.rounds, sketch=at.sketch(self.sketch), objective=self.objective, balance=self.balance
        )


@part(
    "heterogeneity-aware-tree", title="a spanning tree chosen by the updates",
    does="a spanning tree chosen by the updates of the first mixings, for `algorithm: relay`",
)  # fmt: skip
@dataclass(frozen=True)
class HeterogeneityAwareTree(PolicyPart):
    """A spanning tree chosen by the updates, for `algorithm: relay`."""

    looks: Count = 10
    sketch: Sketch = CountSketch()

    def build(self, at: Places) -> Policy:
        """The policy, for one run."""
        return policies.HeterogeneityAwareTree(self.looks, sketch=at.sketch(self.sketch))
