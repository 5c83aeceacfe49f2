"""Communication graphs: a frozen `Graph` and ways to make one."""

from mixwise.graphs.graph import Graph

__all__ = ["Graph"]
