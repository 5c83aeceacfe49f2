"""Communication graphs: an immutable `Graph` and ways to build one."""

from mixwise.graphs.cliques import Cliques, clique_skew, d_cliques
from mixwise.graphs.conversion import from_adjacency, from_edges, from_networkx, load
from mixwise.graphs.families import (
    chain,
    complete,
    directed_exponential,
    directed_ring,
    erdos_renyi,
    exponential,
    grid,
    hypercube,
    one_peer_exponential,
    random_connected,
    random_geometric,
    random_regular,
    ring,
    small_world,
    social_network,
    star,
    torus,
)
from mixwise.graphs.graph import Graph, Pattern
from mixwise.graphs.matchings import (
    edge_coloring,
    edge_sample,
    heaviest_matching,
    matching_decomposition,
    random_matching,
)
from mixwise.graphs.spec import SPECS, parse
from mixwise.graphs.trees import spanning_tree

__all__ = [
    "SPECS", "Cliques", "Graph", "Pattern", "chain", "clique_skew", "complete", "d_cliques", "directed_exponential",
    "directed_ring", "edge_coloring", "edge_sample", "erdos_renyi", "exponential", "from_adjacency", "from_edges",
    "from_networkx", "grid", "heaviest_matching", "hypercube", "load", "matching_decomposition",
    "one_peer_exponential", "parse", "random_connected", "random_geometric", "random_matching", "random_regular",
    "ring", "small_world", "social_network", "spanning_tree", "star", "torus",
]  # fmt: skip
