"""mixwise: decentralized learning with gossip weights that fit the data.

Names are imported when they are first used: `mixwise --help` and shell completion do not wait for torch.
"""

from typing import TYPE_CHECKING

from mixwise.lazy import lazy_names

if TYPE_CHECKING:
    from mixwise import algorithms, data, errors, graphs, mixing, models, network, policies, sketch, tasks
    from mixwise.errors import MixwiseError
    from mixwise.gossip import Gossip
    from mixwise.graphs import Graph
    from mixwise.mixing import MixingMatrix, minimize_gme
    from mixwise.network import SimulatedNetwork
    from mixwise.policies import HeterogeneityAware
    from mixwise.training import train

__version__ = "0.2.0"

__all__ = [
    "Gossip",
    "Graph",
    "HeterogeneityAware",
    "MixingMatrix",
    "MixwiseError",
    "SimulatedNetwork",
    "algorithms",
    "data",
    "errors",
    "graphs",
    "minimize_gme",
    "mixing",
    "models",
    "network",
    "policies",
    "sketch",
    "tasks",
    "train",
]

_PACKAGES = {"algorithms", "data", "errors", "graphs", "mixing", "models", "network", "policies", "sketch", "tasks"}
_HOMES = {
    "Gossip": "gossip", "Graph": "graphs", "HeterogeneityAware": "policies", "MixingMatrix": "mixing",
    "MixwiseError": "errors", "SimulatedNetwork": "network", "minimize_gme": "mixing", "train": "training",
} | {name: name for name in _PACKAGES}  # fmt: skip

if not TYPE_CHECKING:  # a type checker would take this function for a promise of every name
    __getattr__ = lazy_names(__name__, {name: f"mixwise.{home}" for name, home in _HOMES.items()})

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
