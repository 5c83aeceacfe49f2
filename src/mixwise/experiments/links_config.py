"""Links as a recipe writes them: latency in seconds, bandwidth in bytes per second, and edges that are different."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from mixwise.errors import ConfigError
from mixwise.experiments.strict import Strict
from mixwise.graphs import Graph
from mixwise.network import Link, Links

_EDGE = re.compile(r"(\d+)-(\d+)")


class EdgeLinkConfig(Strict):
    """What is different on one edge."""

    latency: float | None = Field(default=None, ge=0)
    bandwidth: float | None = Field(default=None, gt=0)


class LinksConfig(Strict):
    """How long messages take in a simulation; `edges` such as "0-1" name places of the graph."""

    latency: float = Field(default=0.0, ge=0)
    bandwidth: float = Field(gt=0)
    edges: dict[str, EdgeLinkConfig] = {}

    @field_validator("edges")
    @classmethod
    def _pairs(cls, edges: dict[str, EdgeLinkConfig]) -> dict[str, EdgeLinkConfig]:
        for name in edges:
            if not _EDGE.fullmatch(name):
                raise ValueError(f"{name!r} is no edge; write the two places it connects, such as 0-1")
        return edges


def build_links(config: LinksConfig, places: Graph) -> Links:
    """The links between the places of a graph."""
    usual = Link(config.latency, config.bandwidth)
    edges = {}
    known = {tuple(sorted(edge)) for edge in places.edges}
    for name, different in config.edges.items():
        i, j = sorted(map(int, name.split("-")))
        if (i, j) not in known:
            raise ConfigError(f"links.edges: the graph has no edge {name}; name one that mixwise graph shows")
        latency = usual.latency if different.latency is None else different.latency
        edges[i, j] = Link(latency, usual.bandwidth if different.bandwidth is None else different.bandwidth)
    return Links(usual, edges)
