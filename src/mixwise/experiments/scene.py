"""The scene of a run, for its report: the graph, the labels that each node holds, and the method in words."""

from __future__ import annotations

from typing import Any

from mixwise.experiments.config import RunConfig
from mixwise.parts import normalized, words
from mixwise.tasks import ModuleTask
from mixwise.training import Training


def scene(config: RunConfig, training: Training, steps: int) -> dict[str, Any]:
    """Return the scene of a run as JSON values."""
    graph, task = training.network.graph, training.task
    kind, options = normalized("policy", config.policy)
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
        "policy": words(config.part("policy")),
        "policy_kind": options["weights"] if isinstance(options.get("weights"), str) else kind,  # a scheme's own name
        "algorithm": words(config.part("algorithm")),
        "algorithm_kind": normalized("algorithm", config.algorithm)[0],
    }
    if isinstance(task, ModuleTask):
        found |= {
            "data": task.data.name,
            "counts": task.partition.label_counts(task.data.y, task.data.classes).tolist(),
            "classes": list(task.data.class_names) or [str(label) for label in range(task.data.classes)],
            "steps_per_epoch": len(task.data) / (task.nodes * task.batch),
        }
    return found
