"""mixwise: decentralized learning with gossip weights that fit the data.

Names are imported when they are first used: `mixwise --help` and shell completion do not wait for torch.
"""

from typing import TYPE_CHECKING

from mixwise.lazy import lazy_names

if TYPE_CHECKING:
    from mixwise import algorithms, data, errors, graphs, mixing, models, network, policies, sketch, tasks
    from mixwise import experiments as experiments
    from mixwise import gossip as gossip
    from mixwise import seeding as seeding
    from mixwise.comparison import compare
    from mixwise.errors import MixwiseError
    from mixwise.gossip import Gossip
    from mixwise.graphs import Graph
    from mixwise.mixing import MixingMatrix, minimize_gme
    from mixwise.network import SimulatedNetwork
    from mixwise.policies import HeterogeneityAware
    from mixwise.training import Training, train

__version__ = "0.2.0"

__all__ = [
    "Gossip", "Graph", "HeterogeneityAware", "MixingMatrix", "MixwiseError", "SimulatedNetwork", "Training",
    "algorithms", "compare", "data", "errors", "graphs", "minimize_gme", "mixing", "models", "network", "policies",
    "sketch", "tasks", "train",
]  # fmt: skip

_HOMES = {name: name for name in (*__all__, "experiments", "gossip", "seeding")} | {
    "Gossip": "gossip", "Graph": "graphs", "HeterogeneityAware": "policies", "MixingMatrix": "mixing",
    "MixwiseError": "errors", "SimulatedNetwork": "network", "Training": "training", "compare": "comparison",
    "minimize_gme": "mixing", "train": "training",
}  # fmt: skip

if not TYPE_CHECKING:  # a type checker would take this function for a promise of every name
    __getattr__ = lazy_names(__name__, {name: f"mixwise.{home}" for name, home in _HOMES.items()})

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})
