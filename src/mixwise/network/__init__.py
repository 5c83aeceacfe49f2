"""Networks: how rows travel between nodes."""

from mixwise.network.blocks import block
from mixwise.network.distributed import DistributedNetwork
from mixwise.network.faults import LossyNetwork
from mixwise.network.links import Link, Links
from mixwise.network.packing import Packing
from mixwise.network.simulated import SimulatedNetwork
from mixwise.network.traffic import Pending, Traffic
from mixwise.protocols import Network

__all__ = [
    "DistributedNetwork",
    "Link",
    "Links",
    "LossyNetwork",
    "Network",
    "Packing",
    "Pending",
    "SimulatedNetwork",
    "Traffic",
    "block",
]
