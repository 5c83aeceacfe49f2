"""The state of one rank of `Gossip`, besides those of its model and optimizer."""

from __future__ import annotations

from typing import Any

from mixwise.gossip.agreement import check_alike, describe, objection
from mixwise.gossip.collective import transport_of
from mixwise.gossip.model_row import ModelRow
from mixwise.state import decode, encode
from mixwise.training.driver import Driver


def saved(driver: Driver, row: ModelRow, calls: int) -> dict[str, Any]:
    """The state of the driver, and what identifies the rank and the parameters that it belongs to."""
    network = driver.network
    encoded = encode(driver.state(), network.nodes)
    values: dict[str, Any] = {"t": driver.t, "calls": calls, "rank": network.nodes[0], "world": network.graph.n}
    values |= {"parameters": row.checksum(), "driver": encoded.values}
    return {"tensors": {name: tensor.clone() for name, tensor in encoded.tensors.items()}, "values": values}


def load(state: dict[str, Any], driver: Driver, row: ModelRow) -> int:
    """Load such a state on every rank, if all ranks have the state of the same moment; returns its calls."""
    values, network = state["values"], driver.network
    transport = transport_of(network)
    problem = objection(values, network.nodes[0], network.graph.n, row.checksum())
    check_alike(describe("the state to load", {"t": values["t"]}), problem, transport)
    tensors = {name: tensor.clone() for name, tensor in state["tensors"].items()}
    driver.load_state(decode(tensors, values["driver"], network.nodes), row.device)
    calls: int = values["calls"]
    return calls
