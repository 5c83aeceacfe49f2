"""Policies as a recipe writes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, Tag
from pydantic import Discriminator as Choose

from mixwise.experiments.strict import Strict, kind_of, unknown

Scheme = Literal[
    "metropolis-hastings", "optimal-gap", "max-degree", "uniform", "uniform-sender", "lazy-metropolis-hastings",
    "full-averaging",
]  # fmt: skip


class Cliques(Strict):
    """Full averaging inside groups of places."""

    cliques: list[list[int]]


class FixedPolicy(Strict):
    """The same weights at every mixing; a scheme's name alone stands for this."""

    kind: Literal["fixed"] = "fixed"
    weights: Scheme | Cliques


class RandomPolicy(Strict):
    """One of several policies, drawn at random at every mixing."""

    kind: Literal["random"]
    policies: list[PolicyConfig] = Field(min_length=1)
    probabilities: list[float] | None = None


class AlternatingPolicy(Strict):
    """Policies that take turns."""

    kind: Literal["alternating"]
    policies: list[PolicyConfig] = Field(min_length=1)


class ProductPolicy(Strict):
    """Policies one after the other at every mixing, one communication round each."""

    kind: Literal["product"]
    policies: list[PolicyConfig] = Field(min_length=1)


class DecoupledPolicy(Strict):
    """One policy for the parameters, one for the updates; for `algorithm: decoupled`."""

    kind: Literal["decoupled"]
    params: PolicyConfig
    updates: PolicyConfig


class NonePolicy(Strict):
    """No weights: for algorithms that average over all nodes."""

    kind: Literal["none"]


class CyclePolicy(Strict):
    """A sequence of graphs in turn; `peers` is k of the Base-(k+1) graphs."""

    kind: Literal["cycle"]
    sequence: Literal["one-peer-exponential", "base-graph"]
    peers: int = Field(default=1, ge=1)


class MatchingsPolicy(Strict):
    """A random maximal matching of the graph at every mixing."""

    kind: Literal["matchings"]


class MatchaPolicy(Strict):
    """A share of the graph's matchings, chosen at random with optimized chances."""

    kind: Literal["matcha"]
    budget: float = Field(default=0.5, gt=0, le=1)


class EdgeSamplingPolicy(Strict):
    """Every edge is there with a probability, at every mixing anew; Metropolis-Hastings on what is there."""

    kind: Literal["edge-sampling"]
    probability: float = Field(default=0.5, ge=0, le=1)


class DCliquesPolicy(Strict):
    """Cliques whose labels look like the whole data set, updates averaged inside; for `algorithm: decoupled`."""

    kind: Literal["d-cliques"]
    size: int = Field(default=4, ge=1)
    between: Literal["ring", "full"] = "ring"


class LearnedTopologyPolicy(Strict):
    """A sparse topology learned by Frank-Wolfe, from the label shares of the nodes or from their updates."""

    kind: Literal["learned-topology"]
    source: Literal["labels", "updates"] = "labels"
    neighbors: int = Field(default=2, ge=1)
    regularization: float = Field(default=0.1, ge=0)
    inside: bool = False


class TreePolicy(Strict):
    """A spanning tree of the graph, for `algorithm: relay`."""

    kind: Literal["tree"]
    shape: Literal["bfs", "chain"] = "bfs"


class SketchConfig(Strict):
    """How updates are compressed before they are compared."""

    kind: Literal["count", "gaussian", "exact"] = "count"
    dim: int = Field(default=100, ge=1)


class HeterogeneityAwarePolicy(Strict):
    """Weights re-optimized from sketches of the updates."""

    kind: Literal["heterogeneity-aware"]
    period: int = Field(default=1, ge=1)
    sketch: SketchConfig = SketchConfig()
    objective: Literal["updates", "parameters", "both"] = "updates"
    balance: float = Field(default=0.1, ge=0)
    alternate_with: PolicyConfig | None = None
    regularization: float = Field(default=0.0, ge=0)
    smoothing: float = Field(default=0.0, ge=0, lt=1)
    symmetric: bool = False
    growth: float | None = Field(default=None, ge=1)
    drop_below: float = Field(default=0.0, ge=0, lt=0.5)
    graphs: PolicyConfig | None = None
    stochastic: Literal["doubly", "sender"] = "doubly"
    solver: Literal["auto", "piqp", "cvxpy", "local"] = "auto"
    tolerance: float = Field(default=1e-3, gt=0, lt=1)
    max_iterations: int = Field(default=5000, ge=1)


class HeterogeneityAwareMatchingsPolicy(Strict):
    """Matchings chosen by how far apart the nodes are, `rounds` of them at every mixing."""

    kind: Literal["heterogeneity-aware-matchings"]
    rounds: int | None = Field(default=None, ge=1)
    sketch: SketchConfig = SketchConfig()
    objective: Literal["updates", "parameters", "both"] = "parameters"
    balance: float = Field(default=0.1, ge=0)


class AutoPolicy(Strict):
    """The gossip policy that did best in docs/studies/mixing-policies.md; `auto` alone stands for this."""

    kind: Literal["auto"]


_POLICIES = {
    "auto": AutoPolicy,
    "fixed": FixedPolicy,
    "random": RandomPolicy,
    "alternating": AlternatingPolicy,
    "product": ProductPolicy,
    "decoupled": DecoupledPolicy,
    "heterogeneity-aware": HeterogeneityAwarePolicy,
    "cycle": CyclePolicy,
    "matchings": MatchingsPolicy,
    "matcha": MatchaPolicy,
    "edge-sampling": EdgeSamplingPolicy,
    "d-cliques": DCliquesPolicy,
    "learned-topology": LearnedTopologyPolicy,
    "tree": TreePolicy,
    "heterogeneity-aware-matchings": HeterogeneityAwareMatchingsPolicy,
    "none": NonePolicy,
}


def _spelled_out(policy: Any) -> Any:
    """A scheme's name means fixed weights; a kind that there is not is an error here."""
    if isinstance(policy, str):
        return {"kind": policy} if policy in ("auto", "none") else {"kind": "fixed", "weights": policy}
    kind = kind_of(policy, "fixed")
    if kind not in _POLICIES:
        raise ValueError(unknown("policy", kind, ["auto", *get_args(Scheme), *(f"kind: {name}" for name in _POLICIES)]))
    return policy


PolicyConfig = Annotated[
    Annotated[FixedPolicy, Tag("kind: fixed")]
    | Annotated[AutoPolicy, Tag("kind: auto")]
    | Annotated[RandomPolicy, Tag("kind: random")]
    | Annotated[AlternatingPolicy, Tag("kind: alternating")]
    | Annotated[ProductPolicy, Tag("kind: product")]
    | Annotated[DecoupledPolicy, Tag("kind: decoupled")]
    | Annotated[HeterogeneityAwarePolicy, Tag("kind: heterogeneity-aware")]
    | Annotated[CyclePolicy, Tag("kind: cycle")]
    | Annotated[MatchingsPolicy, Tag("kind: matchings")]
    | Annotated[MatchaPolicy, Tag("kind: matcha")]
    | Annotated[EdgeSamplingPolicy, Tag("kind: edge-sampling")]
    | Annotated[DCliquesPolicy, Tag("kind: d-cliques")]
    | Annotated[LearnedTopologyPolicy, Tag("kind: learned-topology")]
    | Annotated[TreePolicy, Tag("kind: tree")]
    | Annotated[HeterogeneityAwareMatchingsPolicy, Tag("kind: heterogeneity-aware-matchings")]
    | Annotated[NonePolicy, Tag("kind: none")],
    Choose(lambda policy: f"kind: {kind_of(policy, 'fixed')}"),
    BeforeValidator(_spelled_out),
]
