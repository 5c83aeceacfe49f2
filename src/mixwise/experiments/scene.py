"""What a picture of a run needs and its records do not tell: who talks to whom, who holds what, with which method."""

from __future__ import annotations

from typing import Any

from mixwise.experiments.algorithm_config import AlgorithmConfig
from mixwise.experiments.config import RunConfig
from mixwise.experiments.policy_config import (
    AlternatingPolicy,
    AutoPolicy,
    Cliques,
    CyclePolicy,
    DCliquesPolicy,
    DecoupledPolicy,
    EdgeSamplingPolicy,
    FixedPolicy,
    HeterogeneityAwareMatchingsPolicy,
    HeterogeneityAwarePolicy,
    LearnedTopologyPolicy,
    MatchaPolicy,
    MatchingsPolicy,
    PolicyConfig,
    ProductPolicy,
    RandomPolicy,
    TreePolicy,
)
from mixwise.experiments.task_config import ClassificationConfig
from mixwise.tasks import ModuleTask
from mixwise.training import Training

_SCHEMES: dict[str, str] = {
    "metropolis-hastings": "Metropolis-Hastings weights",
    "lazy-metropolis-hastings": "lazy Metropolis-Hastings weights",
    "optimal-gap": "weights with the best spectral gap",
    "max-degree": "max-degree weights",
    "uniform": "uniform weights",
    "uniform-sender": "uniform weights of the senders",
    "full-averaging": "full averaging: every node hears all others",
}
_ALGORITHMS = {
    "dsgd": "D-SGD",
    "dadam": "D-Adam",
    "d2": "D²",
    "extra": "EXTRA",
    "decentlam": "DecentLaM",
    "choco": "CHOCO-SGD",
    "relay": "RelaySGD",
    "local-sgd": "local SGD",
    "quasi-global": "quasi-global momentum",
    "quasi-global-adam": "quasi-global Adam",
}


def scene(config: RunConfig, training: Training, steps: int) -> dict[str, Any]:
    """The scene of a run, as JSON holds it."""
    graph, task = training.network.graph, training.task
    found: dict[str, Any] = {
        "n": graph.n,
        "directed": graph.directed,
        "edges": graph.edge_array.tolist(),
        "labels": graph.labels,
        "graph": config.graph,
        "placement": config.placement,
        "dim": task.layout.dim,
        "row_bytes": task.layout.dim * training.X.element_size(),
        "steps": steps,
        "policy": policy_words(config.policy),
        "policy_kind": _policy_kind(config.policy),
        "algorithm": _algorithm_words(config.algorithm),
        "algorithm_kind": config.algorithm.kind,
    }
    if isinstance(task, ModuleTask) and isinstance(config.task, ClassificationConfig):
        found |= {
            "data": config.task.data.kind,
            "counts": task.partition.label_counts(task.data.y, task.data.classes).tolist(),
            "classes": list(task.data.class_names) or [str(label) for label in range(task.data.classes)],
            "steps_per_epoch": len(task.data) / (task.nodes * task.batch),
        }
    return found


def _policy_kind(policy: PolicyConfig) -> str:
    if isinstance(policy, FixedPolicy) and isinstance(policy.weights, str):
        return policy.weights  # a scheme goes by its own name
    return policy.kind


def _algorithm_words(config: AlgorithmConfig) -> str:
    options = config.model_dump(exclude={"kind"}, exclude_none=True, exclude_defaults=True)
    name = _ALGORITHMS.get(config.kind, config.kind.replace("-", " "))
    return name + (f" ({', '.join(f'{key} {value}' for key, value in options.items())})" if options else "")


def policy_words(policy: PolicyConfig) -> str:
    """A policy as one would say it.

    >>> from mixwise.experiments.policy_config import HeterogeneityAwarePolicy
    >>> policy_words(HeterogeneityAwarePolicy(kind="heterogeneity-aware", period=10))
    'weights optimized every 10 mixings from count sketches of 100 numbers'
    """
    match policy:
        case FixedPolicy():
            return _scheme_words(policy.weights)
        case RandomPolicy():
            return "at random one of: " + "; ".join(map(policy_words, policy.policies))
        case AlternatingPolicy():
            return "in turn " + " and ".join(map(policy_words, policy.policies))
        case ProductPolicy():
            return "one after the other " + ", then ".join(map(policy_words, policy.policies))
        case DecoupledPolicy():
            return f"parameters: {policy_words(policy.params)}; updates: {policy_words(policy.updates)}"
        case HeterogeneityAwarePolicy():
            return _aware_words(policy)
        case HeterogeneityAwareMatchingsPolicy():
            rounds = "matchings" if policy.rounds != 1 else "the matching"
            return f"{rounds} that remove most of the disagreement, chosen anew at every mixing"
        case AutoPolicy():
            return "auto: pairs of nodes chosen by their disagreement, anew at every mixing"
        case CyclePolicy():
            return f"a cycle of graphs ({policy.sequence})"
        case MatchingsPolicy():
            return "a random matching at every mixing"
        case MatchaPolicy():
            return f"MATCHA: random matchings with a budget of {policy.budget:g}"
        case EdgeSamplingPolicy():
            return f"each edge is there with probability {policy.probability:g}, Metropolis-Hastings on what is there"
        case DCliquesPolicy():
            return f"cliques of {policy.size} that together hold all labels"
        case LearnedTopologyPolicy():
            return f"a topology learned from {policy.source}, about {policy.neighbors} neighbors each"
        case TreePolicy():
            return f"a spanning tree ({policy.shape})"
        case _:
            return "no gossip weights"


def _scheme_words(weights: str | Cliques) -> str:
    return _SCHEMES[weights] if isinstance(weights, str) else "averaging inside groups"


def _aware_words(policy: HeterogeneityAwarePolicy) -> str:
    often = "at every mixing" if policy.period == 1 else f"every {policy.period} mixings"
    source = "exact updates" if policy.sketch.kind == "exact" else _sketch_words(policy)
    words = f"weights optimized {often} from {source}"
    if policy.alternate_with is not None:
        words += f", in turn with {policy_words(policy.alternate_with)}"
    return words


def _sketch_words(policy: HeterogeneityAwarePolicy) -> str:
    return f"{policy.sketch.kind} sketches of {policy.sketch.dim} numbers".replace("gaussian", "Gaussian")
