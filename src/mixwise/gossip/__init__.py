"""Gossip in your own PyTorch loop, or in a trainer."""

from mixwise.gossip.gossip import Gossip
from mixwise.gossip.trainers import lightning_callback, start_node, trainer_callback

__all__ = ["Gossip", "lightning_callback", "start_node", "trainer_callback"]
