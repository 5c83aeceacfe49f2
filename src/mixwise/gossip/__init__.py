"""Gossip in your own PyTorch loop."""

from mixwise.gossip.gossip import Gossip

__all__ = ["Gossip"]
