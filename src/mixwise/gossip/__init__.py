"""Gossip in somebody's own PyTorch loop."""

from mixwise.gossip.gossip import Gossip

__all__ = ["Gossip"]
