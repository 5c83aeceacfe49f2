"""The averaged model, the same on every rank; a collective call."""

from __future__ import annotations

from typing import Any

import torch

from mixwise.gossip.model_row import ModelRow
from mixwise.gossip.start import take_from_first
from mixwise.protocols import Network


def averaged_state(row: ModelRow, models: torch.Tensor, network: Network) -> dict[str, Any]:
    """A state dict of copies: parameters and floating-point buffers averaged, other buffers those of rank 0."""
    with network.uncounted():
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
