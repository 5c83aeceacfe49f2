"""mixwise: decentralized learning with gossip weights that fit the data.

Names are imported when they are first used: `mixwise --help` and shell completion do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixwise import algorithms, data, errors, graphs, mixing, models, network, policies, sketch, tasks, train
    from mixwise.errors import MixwiseError
    from mixwise.gossip import Gossip
    from mixwise.graphs import Graph
    from mixwise.mixing import MixingMatrix, minimize_gme
    from mixwise.network import SimulatedNetwork
    from mixwise.policies import HeterogeneityAware

__version__ = "0.1.0"

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

# The module of each name above that is not itself a module.
_HOMES = {
    "Gossip": "gossip", "Graph": "graphs", "HeterogeneityAware": "policies", "MixingMatrix": "mixing",
    "MixwiseError": "errors", "SimulatedNetwork": "network", "minimize_gme": "mixing",
}  # fmt: skip
_FURTHER = ("experiments", "gossip", "seeding")  # modules that `from mixwise import *` leaves out

if not TYPE_CHECKING:  # a type checker would take this function for a promise of every name

    def __getattr__(name: str) -> Any:
        if name not in (*__all__, *_FURTHER):
            raise AttributeError(f"module 'mixwise' has no attribute {name!r}")
        module = import_module(f"mixwise.{_HOMES.get(name, name)}")
        globals()[name] = value = getattr(module, name) if name in _HOMES else module
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
