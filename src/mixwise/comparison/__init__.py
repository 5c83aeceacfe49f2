"""`mixwise.compare`: several methods on your own task, over several seeds, in a run folder like that of a recipe."""

from mixwise.comparison.comparing import compare

__all__ = ["compare"]
