"""The weights in use as tensors: what a checkpoint keeps of them, known as a whole or in part.

Legend: m nodes owned here, of n.
"""

from __future__ import annotations

import numpy as np
import torch

from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.mixing.matrix import Kind


def weights_as_tensors(W: MixingMatrix) -> dict[str, torch.Tensor]:
    """All weights; of a matrix that is known in part, the rows and columns of the owned nodes, one row each."""
    if W.whole:
        return {"weights": torch.from_numpy(W.weights.copy())}
    own = slice(W.nodes.start, W.nodes.stop)
    return {
        "nodes.rows": torch.arange(W.nodes.start, W.nodes.stop),
        "sent.rows": torch.from_numpy(W.sparse[own].toarray()),
        "heard.rows": torch.from_numpy(W.incoming[own].toarray()),
    }


def weights_from_tensors(tensors: dict[str, torch.Tensor], graph: Graph, kind: Kind) -> MixingMatrix:
    """The matrix again, or the part of it that belongs to the nodes whose rows are there."""
    if "weights" in tensors:
        return MixingMatrix(graph, tensors["weights"].numpy(), kind, tolerance=1e-9)
    ids = tensors["nodes.rows"]
    nodes = range(int(ids[0]), int(ids[-1]) + 1)
    W = np.zeros((graph.n, graph.n))
    W[nodes.start : nodes.stop] = tensors["sent.rows"].numpy()
    W[:, nodes.start : nodes.stop] = tensors["heard.rows"].numpy().T
    return MixingMatrix(graph, W[graph.pattern.rows, graph.pattern.cols], kind, tolerance=1e-9, nodes=nodes)
