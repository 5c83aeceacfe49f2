"""Networks: how rows travel between nodes."""

from mixwise.network.distributed import DistributedNetwork
from mixwise.network.faults import Faults
from mixwise.network.faulty import FaultyNetwork
from mixwise.network.guarded import GuardedNetwork
from mixwise.network.links import Link, Links
from mixwise.network.measuring import Measuring
from mixwise.network.routes import block
from mixwise.network.simulated import SimulatedNetwork
from mixwise.network.traffic import Arrivals, Cargo, Packing, Pending, Traffic
from mixwise.protocols import Network

__all__ = [
    "Arrivals",
    "Cargo",
    "DistributedNetwork",
    "Faults",
    "FaultyNetwork",
    "GuardedNetwork",
    "Link",
    "Links",
    "Measuring",
    "Network",
    "Packing",
    "Pending",
    "SimulatedNetwork",
    "Traffic",
    "block",
]
