"""Calls in which all ranks take part: the averaged model, metrics, the status before a mixing, loading a state."""

from __future__ import annotations

import math
from typing import Any

import torch

from mixwise.errors import NetworkError, TrainingError
from mixwise.gossip.model_row import ModelRow
from mixwise.gossip.schedule import Schedule
from mixwise.network import DistributedNetwork, GuardedNetwork
from mixwise.network.agreement import check_alike, describe, plain_name
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
    """A state dict of copies: parameters and floating-point buffers averaged, other buffers those of rank 0.

    Its keys are those of the plain model, if the model was compiled.
    """
    mean = network.measuring().average(models)
    values = {id(parameter): view for parameter, view in row.views(mean)}
    values |= {id(buffer): _average_buffer(buffer, network) for buffer in row.module.buffers()}
    state: dict[str, Any] = row.module.state_dict(keep_vars=True)
    for key in list(state):  # in place, since torch keeps the versions of modules beside the entries
        value = state.pop(key)
        is_tensor = isinstance(value, torch.Tensor)
        state[plain_name(key)] = values.get(id(value), value).detach().clone() if is_tensor else value
    return state


def _average_buffer(buffer: torch.Tensor, network: Network) -> torch.Tensor:
    if not buffer.is_floating_point():
        first = buffer.clone()
        take_from_first(first, network)
        return first
    wide = torch.promote_types(buffer.dtype, torch.float32)
    return network.measuring().average(buffer.reshape(1, -1).to(wide)).view(buffer.shape).to(buffer.dtype)


def metrics(row: ModelRow, models: torch.Tensor, driver: Driver, loss: float = math.nan) -> dict[str, float]:
    """Return how far the nodes are apart, what mixing does about it, and how much a node has sent.

    Args:
        row: has the gradients of the last step, unless they were reset; they count only if all ranks have them.
        models: (m, d).
        driver: has the network, and the last mixings.
        loss: of this rank; averaged over the ranks that have one.
    """
    network, history = driver.network, driver.history
    told = told_by_all(network, row, float(row.has_gradients), loss)
    all_have, known = all(have for have, _ in told), [loss for _, loss in told if math.isfinite(loss)]
    values = {"loss": sum(known) / len(known)} if known else {}
    values |= mixing_figures(models, row.gradients() if all_have else None, history, network)
    values |= {name: value for name, value in history.solve_figures().items() if name != "solve_status"}
    if isinstance(network, GuardedNetwork):
        values |= network.figures()
    n, traffic = network.graph.n, network.traffic
    return values | {"bytes_parameters": traffic.parameters / n, "bytes_sketches": traffic.sketches / n}


def told_by_all(network: Network, row: ModelRow, *values: float) -> list[list[float]]:
    """Return the values that each node tells, in float32, in the order of the nodes."""
    own = torch.tensor([values], dtype=torch.float32, device=row.device).expand(len(network.nodes), -1)
    told: list[list[float]] = network.measuring().gather(own).tolist()
    return told


def statuses(status: int, driver: Driver, row: ModelRow, rate: float) -> list[tuple[int, float]]:
    """Tell all ranks the status and the learning rate of this one before the next mixing; return those of all."""
    network, t = driver.network, driver.t
    network.begin(t)
    everyone = [(int(told), rate) for told, rate in told_by_all(network, row, status, rate)]
    failed = tuple(rank for rank, (told, _) in enumerate(everyone) if told == FAILED)
    if failed and status != FAILED:
        message = f"rank {failed[0]} has left the join block with an error before mixing {t}; see its output"
        raise NetworkError(message, missing=failed, operation="join", step=t)
    return everyone


# --- checkpoints ---
def _name(driver: Driver) -> str:
    return type(driver.algorithm).__name__


def saved(driver: Driver, row: ModelRow, schedule: Schedule, calls: int) -> dict[str, Any]:
    """The state of the driver and the schedule, and what identifies the rank and the parameters."""
    network = driver.network
    encoded = encode(driver.state(), network.nodes)
    values: dict[str, Any] = {"t": driver.t, "calls": calls, "rank": network.nodes[0], "world": network.graph.n}
    values |= {"parameters": row.checksum(), "algorithm": _name(driver), "driver": encoded.values}
    tensors = {name: tensor.clone() for name, tensor in encoded.tensors.items()}
    return {"tensors": tensors, "values": values, "scheduler": schedule.state_dict()}


def load(state: dict[str, Any], driver: Driver, row: ModelRow, schedule: Schedule) -> int:
    """Load such a state on every rank, if all ranks have the state of the same moment; returns its calls."""
    network, values = driver.network, state.get("values", {})
    problem = _problem(state, driver, row) or schedule.problem(state.get("scheduler"))
    check_alike(describe("the state to load", {"t": values.get("t")}), problem, transport_of(network))
    tensors = {name: tensor.clone() for name, tensor in state["tensors"].items()}
    driver.load_state(decode(tensors, values["driver"], network.nodes), row.device)
    calls = int(values["calls"])
    schedule.load_state_dict(state["scheduler"], driver.t * driver.local_steps + calls)
    return calls


def _problem(state: dict[str, Any], driver: Driver, row: ModelRow) -> TrainingError | None:
    """Why such a state cannot be loaded, if it cannot."""
    values, network = state.get("values", {}), driver.network
    if not values:
        found = ", ".join(map(str, list(state)[:3])) or "nothing"
        return TrainingError(f"this state holds {found}; load what gossip.state_dict() has returned")
    r, n, rank, world = values["rank"], values["world"], network.nodes[0], network.graph.n
    if (r, n) != (rank, world):
        return TrainingError(f"state of rank {r} of {n}, loaded on rank {rank} of {world}; every rank loads its own")
    if values["parameters"] != row.checksum():
        return TrainingError(
            "the parameters are not those that were saved with this state; after making Gossip, load the state dicts "
            "that were saved together: first that of the model, then of the optimizer, then of Gossip"
        )
    if values["algorithm"] != _name(driver):
        remedy = "make Gossip with the same algorithm, or begin without this state"
        return TrainingError(f"state of {values['algorithm']}, loaded into {_name(driver)}; {remedy}")
    return None
