"""Matrices that wait for the next mixing, as tensors: what a checkpoint keeps of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix


def as_tensors(rounds: tuple[MixingMatrix, ...]) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """Tensors by name, and plain values.

    Of a matrix that is known in part there are the rows and columns of the owned nodes, (m, n) each and so in a form
    that other processes can take their part of; of one that is known as a whole, the weights.
    """
    tensors, values = {}, []
    for number, W in enumerate(rounds):
        values.append({"n": W.n, "directed": W.graph.directed, "kind": W.kind, "tolerance": W.tolerance})
        tensors[f"{number}.edges"] = torch.from_numpy(W.graph.edge_array.copy())
        if W.whole:
            tensors[f"{number}.weights"] = torch.from_numpy(W.weights.copy())
        else:
            own = slice(W.nodes.start, W.nodes.stop)
            tensors[f"{number}.rows"] = torch.from_numpy(W.sparse[own].toarray())
            tensors[f"{number}.columns"] = torch.from_numpy(W.incoming[own].toarray())
    return tensors, values


def as_matrices(
    tensors: dict[str, torch.Tensor], values: list[dict[str, Any]], nodes: range
) -> tuple[MixingMatrix, ...]:
    """The matrices again; those known in part as far as the owned nodes need them."""
    rounds = []
    for number, value in enumerate(values):
        graph = Graph(value["n"], tensors[f"{number}.edges"].numpy(), value["directed"])
        kind, tolerance = value["kind"], value["tolerance"]
        if f"{number}.weights" in tensors:
            rounds.append(MixingMatrix(graph, tensors[f"{number}.weights"].numpy(), kind, tolerance))
            continue
        W = np.zeros((graph.n, graph.n))
        W[nodes.start : nodes.stop] = tensors[f"{number}.rows"].numpy()
        W[:, nodes.start : nodes.stop] = tensors[f"{number}.columns"].numpy().T
        weights = W[graph.pattern.rows, graph.pattern.cols]
        rounds.append(MixingMatrix(graph, weights, kind, tolerance, nodes))
    return tuple(rounds)
