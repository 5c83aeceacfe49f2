"""Networks: how rows travel between nodes."""

from mixwise.network.base import Network, Traffic
from mixwise.network.simulated import SimulatedNetwork

__all__ = ["Network", "SimulatedNetwork", "Traffic"]
