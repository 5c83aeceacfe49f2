"""mixwise: decentralized learning with gossip weights that fit the data."""

from typing import TYPE_CHECKING

from mixwise.errors import MixwiseError
from mixwise.lazy import lazy_names

if TYPE_CHECKING:
    from mixwise import algorithms, errors, graphs, mixing, network, policies, sketch, tasks
    from mixwise.gossip import Gossip
    from mixwise.graphs import Graph
    from mixwise.mixing import MixingMatrix, minimize_gme
    from mixwise.network import SimulatedNetwork
    from mixwise.policies import HeterogeneityAware
    from mixwise.training import train

__version__ = "0.1.0"

__all__ = [
    "Gossip",
    "Graph",
    "HeterogeneityAware",
    "MixingMatrix",
    "MixwiseError",
    "SimulatedNetwork",
    "algorithms",
    "errors",
    "graphs",
    "minimize_gme",
    "mixing",
    "network",
    "policies",
    "sketch",
    "tasks",
    "train",
]

_PACKAGES = ("algorithms", "errors", "graphs", "mixing", "network", "policies", "sketch", "tasks")
__getattr__ = lazy_names(
    __name__,
    {name: f"mixwise.{name}" for name in _PACKAGES}
    | {
        "Gossip": "mixwise.gossip",
        "Graph": "mixwise.graphs",
        "HeterogeneityAware": "mixwise.policies",
        "MixingMatrix": "mixwise.mixing",
        "SimulatedNetwork": "mixwise.network",
        "minimize_gme": "mixwise.mixing",
        "train": "mixwise.training",
    },
)
