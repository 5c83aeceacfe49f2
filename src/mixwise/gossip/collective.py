"""Calls in which all ranks take part: the averaged model, metrics, the status before a mixing, loading a state."""

from __future__ import annotations

import math
from typing import Any

import torch

from mixwise.errors import NetworkError, TrainingError
from mixwise.gossip.model_row import ModelRow
from mixwise.network import DistributedNetwork, GuardedNetwork
from mixwise.network.agreement import check_alike, describe
from mixwise.network.guarded import unguarded
from mixwise.network.transport import Transport
from mixwise.protocols import Network
from mixwise.state import decode, encode
from mixwise.training.driver import Driver
from mixwise.training.figures import mixing_figures

DONE, WORKING, FAILED = 0, 1, 2


def take_from_first(tensor: torch.Tensor, network: Network) -> None:
    """Give every rank the values of rank 0, in place."""
    if (transport := transport_of(network)) is not None:
        transport.broadcast(tensor, "first values")


def transport_of(network: Network) -> Transport | None:
    """Return how messages travel between processes; None if all nodes are in one."""
    bare = unguarded(network)
    return bare.transport if isinstance(bare, DistributedNetwork) else None


def averaged_state(row: ModelRow, models: torch.Tensor, network: Network) -> dict[str, Any]:
    """A state dict of copies: parameters and floating-point buffers averaged, other buffers those of rank 0."""
    with network.traffic.pause():
        mean = network.average(models)
        values = {id(parameter): view for parameter, view in row.views(mean)}
        values |= {id(buffer): _average_buffer(buffer, network) for buffer in row.module.buffers()}
    state: dict[str, Any] = row.module.state_dict(keep_vars=True)
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            state[key] = values.get(id(value), value).detach().clone()
    return state


def _average_buffer(buffer: torch.Tensor, network: Network) -> torch.Tensor:
    if not buffer.is_floating_point():
        first = buffer.clone()
        take_from_first(first, network)
        return first
    wide = torch.promote_types(buffer.dtype, torch.float32)
    return network.average(buffer.reshape(1, -1).to(wide)).view(buffer.shape).to(buffer.dtype)


def metrics(row: ModelRow, models: torch.Tensor, driver: Driver, loss: float = math.nan) -> dict[str, float]:
    """Return how far the nodes are apart, what mixing does about it, and how much a node has sent.

    Args:
        row: has the gradients of the last step, unless they were reset; they count only if all ranks have them.
        models: (m, d).
        driver: has the network, and the last mixings.
        loss: of this rank; averaged over the ranks that have one.
    """
    network, history = driver.network, driver.history
    own = torch.tensor([[float(row.has_gradients), loss]], dtype=torch.float32, device=models.device)
    with network.traffic.pause():
        have, losses = network.gather(own.expand(len(models), 2)).unbind(1)
    all_have, known = bool(have.all()), losses[losses.isfinite()]
    values = {"loss": float(known.mean())} if len(known) else {}
    values |= mixing_figures(models, row.gradients() if all_have else None, history, network)
    values |= {name: value for name, value in history.solve_figures().items() if name != "solve_status"}
    if isinstance(network, GuardedNetwork):
        values |= network.figures()
    n, traffic = network.graph.n, network.traffic
    return values | {"bytes_parameters": traffic.parameters / n, "bytes_sketches": traffic.sketches / n}


def any_works(status: int, driver: Driver, row: ModelRow) -> bool:
    """Tell all ranks the status of this one before the next mixing, and return whether any still has data."""
    network, t = driver.network, driver.t
    network.step = t
    own = torch.full((1, 1), status, dtype=torch.int64, device=row.device)
    with network.traffic.pause():
        everyone = network.gather(own)[:, 0].tolist()
    failed = tuple(rank for rank, told in enumerate(everyone) if told == FAILED)
    if failed and status != FAILED:
        message = f"rank {failed[0]} has left the join block with an error before mixing {t}; see its output"
        raise NetworkError(message, missing=failed, operation="join", step=t)
    return WORKING in everyone


# --- checkpoints ---
def _name(driver: Driver) -> str:
    return type(driver.algorithm).__name__


def saved(driver: Driver, row: ModelRow, calls: int) -> dict[str, Any]:
    """The state of the driver, and what identifies the rank and the parameters that it belongs to."""
    network = driver.network
    encoded = encode(driver.state(), network.nodes)
    values: dict[str, Any] = {"t": driver.t, "calls": calls, "rank": network.nodes[0], "world": network.graph.n}
    values |= {"parameters": row.checksum(), "algorithm": _name(driver), "driver": encoded.values}
    return {"tensors": {name: tensor.clone() for name, tensor in encoded.tensors.items()}, "values": values}


def load(state: dict[str, Any], driver: Driver, row: ModelRow) -> int:
    """Load such a state on every rank, if all ranks have the state of the same moment; returns its calls."""
    network = driver.network
    values = state.get("values", {})
    r, n, rank, world = values.get("rank"), values.get("world"), network.nodes[0], network.graph.n
    problem = None
    if not values:
        found = ", ".join(map(str, list(state)[:3])) or "nothing"
        problem = TrainingError(f"this state holds {found}; load what gossip.state_dict() has returned")
    elif (r, n) != (rank, world):
        problem = TrainingError(f"state of rank {r} of {n}, loaded on rank {rank} of {world}; every rank loads its own")
    elif values["parameters"] != row.checksum():
        problem = TrainingError(
            "the parameters are not those that were saved with this state; after making Gossip, load the state dicts "
            "that were saved together: first that of the model, then of the optimizer, then of Gossip"
        )
    elif values.get("algorithm", _name(driver)) != _name(driver):  # older states do not name it
        remedy = "make Gossip with the same algorithm, or begin without this state"
        problem = TrainingError(f"state of {values['algorithm']}, loaded into {_name(driver)}; {remedy}")
    check_alike(describe("the state to load", {"t": values.get("t")}), problem, transport_of(network))
    tensors = {name: tensor.clone() for name, tensor in state["tensors"].items()}
    driver.load_state(decode(tensors, values["driver"], network.nodes), row.device)
    return int(values["calls"])
