"""Training: the loop and its records."""

from mixwise.train.loop import train
from mixwise.train.records import Record

__all__ = ["Record", "train"]
