"""mixwise: decentralized learning with gossip weights that fit the data."""

__version__ = "0.1.0"
