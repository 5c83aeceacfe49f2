"""The state of one rank of `Gossip`, besides those of its model and optimizer."""

from __future__ import annotations

from typing import Any

from mixwise.errors import TrainingError
from mixwise.gossip.collective import transport_of
from mixwise.gossip.model_row import ModelRow
from mixwise.network.agreement import check_alike, describe
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
    r, n, rank, world = values["rank"], values["world"], network.nodes[0], network.graph.n
    problem = None
    if (r, n) != (rank, world):
        problem = TrainingError(f"state of rank {r} of {n}, loaded on rank {rank} of {world}; every rank loads its own")
    elif values["parameters"] != row.checksum():
        problem = TrainingError(
            "the parameters are not those that were saved with this state; after making Gossip, load the state dicts "
            "that were saved together: first that of the model, then of the optimizer, then of Gossip"
        )
    check_alike(describe("the state to load", {"t": values["t"]}), problem, transport_of(network))
    tensors = {name: tensor.clone() for name, tensor in state["tensors"].items()}
    driver.load_state(decode(tensors, values["driver"], network.nodes), row.device)
    return int(values["calls"])
