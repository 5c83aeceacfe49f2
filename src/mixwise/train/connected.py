"""Whether the nodes of a graph can learn from each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mixwise.errors import GraphError
from mixwise.graphs import Graph
from mixwise.mixing import MixingMatrix
from mixwise.network.survivors import listed

_SHOWN = 4  # components in an error


def check_connected(graph: Graph, matrices: Sequence[MixingMatrix] = ()) -> None:
    """Refuse a graph in which some nodes never hear of others, unless the edges of `matrices` connect them.

    The graphs of single mixings may fall apart: matchings do. What has to be connected is all that may ever be used.
    """
    if graph.is_connected:
        return
    used = [graph.arcs, *(W.graph.arcs for W in matrices if W.n == graph.n)]
    ends = [np.stack([arcs.senders, arcs.receivers], axis=1) for arcs in used]
    parts = Graph(graph.n, np.concatenate(ends), directed=True).components
    if len(parts) == 1:
        return
    shown = " | ".join(listed(part) for part in parts[:_SHOWN]) + (" | …" if len(parts) > _SHOWN else "")
    reach = "do not all reach each other along the arcs" if graph.directed else "cannot reach each other"
    raise GraphError(
        f"the graph has {len(parts)} components, nodes {shown}, that {reach}, so no model learns from all data; give a "
        f"connected graph, or train one component: graph.subgraph(max(graph.components, key=len))"
    )
