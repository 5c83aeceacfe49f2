"""A model in one row: its trained parameters lie one after the other, so that mixing them needs no copy.

Legend: X, G (1, d), the row of parameters and of their gradients; B (1, b), the buffers that are mixed.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.dlpack import from_dlpack

from mixwise.errors import DivergedError, TrainingError
from mixwise.tasks.devices import checked_device
from mixwise.tasks.rows import RowLayout


class ModelRow:
    """The trained parameters of a module, and the row X (1, d) whose views they are once `bind` was called.

    The parameters remain the same objects under the same names, so that optimizers keep working on them.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.layout = module, RowLayout(module)
        named = dict(module.named_parameters())
        self._trained = [(slot, named[slot.name]) for slot in self.layout.slots]
        self.frozen = {name: p for name, p in named.items() if not p.requires_grad}
        self._owners = [
            (part, key, parameter) for part in module.modules() for key, parameter in part._parameters.items()
        ]
        first = self._trained[0][1]
        self.dtype, self.device = first.dtype, first.device
        self._check_uniform()
        if self.dtype not in (torch.float32, torch.float64):
            why = "is not real" if self.dtype.is_complex else "loses small updates"
            raise TrainingError(f"parameters: {self.dtype} {why}; keep them in torch.float32, with torch.autocast")
        checked_device(self.device, self.dtype)
        self.X = torch.empty(1, self.layout.dim, dtype=self.dtype, device=self.device)
        self._G: torch.Tensor | None = None

    # --- parameters ---
    @torch.no_grad()
    def bind(self) -> None:
        """Copy the parameters into the row, and let them use its memory."""
        for parameter, view in self.views(self.X[0]):
            view.copy_(parameter)
            # A storage of its own over the same memory: safetensors takes tensors of one storage for one tied weight.
            parameter.data = from_dlpack(view) if self.device.type in ("cpu", "cuda") else view
        self._at = [(parameter, parameter.data_ptr()) for _, parameter in self._trained]

    def settle(self) -> None:
        """Check the parameters before the row is used, and bind those that were moved; almost free if none was."""
        for part, key, parameter in self._owners:
            if part._parameters.get(key) is not parameter:
                raise TrainingError(
                    f"the {key} of a {type(part).__name__} is another tensor than when Gossip was made, and no longer "
                    f"the optimizer's; use load_state_dict without assign=True, or make a new optimizer and Gossip"
                )
        for name, parameter in self.frozen.items():
            if parameter.requires_grad:
                raise TrainingError(
                    f"the parameter {name!r} was frozen when Gossip was made and no longer is, so it would be "
                    f"trained but never mixed; make a new Gossip after changing requires_grad"
                )
        for parameter, at in self._at:
            if parameter.data_ptr() != at:
                self._check_uniform()
                self.bind()
                break

    def _check_uniform(self) -> None:
        for slot, parameter in self._trained:
            if (parameter.dtype, parameter.device) != (self.dtype, self.device):
                raise TrainingError(
                    f"the parameter {slot.name!r} is {parameter.dtype} on {parameter.device}, others are {self.dtype} "
                    f"on {self.device}; trained parameters travel as one row: model.to(device, dtype) before Gossip"
                )

    def views(self, row: torch.Tensor) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Yield every trained parameter with its place in another row (d,)."""
        for slot, parameter in self._trained:
            yield parameter, slot.view(row)

    def check_finite(self, t: int, rank: int) -> None:
        """Raise an error if the row is not finite before mixing t."""
        # A sum propagates NaN and infinity, at a twentieth of the cost of testing each entry.
        if not math.isfinite(self.X.sum()) and not bool(torch.isfinite(self.X).all()):
            raise DivergedError(
                f"mixing {t}: a parameter of rank {rank} is no longer finite, so nothing was sent; lower the learning "
                f"rate, or check its data and its loss for NaN",
                node=rank,
            )

    def checksum(self) -> int:
        """A checksum of the row."""
        return zlib.crc32(self.X.detach().cpu().numpy().tobytes())

    # --- gradients ---
    @torch.no_grad()
    def gradients(self) -> torch.Tensor:
        """G (1, d): the gradients, 0 where a parameter has none; valid until the next call."""
        if self._G is None:
            self._G = torch.zeros_like(self.X)
        for parameter, place in self.views(self._G[0]):
            if parameter.grad is None:
                place.zero_()
            elif parameter.grad.data_ptr() != place.data_ptr():  # else it lies there already
                place.copy_(parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad)
        return self._G

    @property
    def has_gradients(self) -> bool:
        """Whether any parameter has one."""
        return any(parameter.grad is not None for _, parameter in self._trained)

    def use_gradients(self, D: torch.Tensor) -> None:
        """Let the optimizer see these rows in place of the gradients."""
        for parameter, place in self.views(D[0]):
            parameter.grad = place

    def restore_gradients(self) -> None:
        """Let the parameters have their gradients again, as `gradients` returned them last."""
        if self._G is not None:
            self.use_gradients(self._G)

    # --- buffers ---
    @property
    def mixable_buffers(self) -> dict[str, torch.Tensor]:
        """The buffers with the dtype of the row, by name; a module may replace them at any time."""
        return {name: buffer for name, buffer in self.module.named_buffers() if buffer.dtype == self.dtype}

    @torch.no_grad()
    def buffer_row(self) -> torch.Tensor | None:
        """B (1, b), a copy; None if there are none."""
        buffers = [buffer.detach().reshape(1, -1) for buffer in self.mixable_buffers.values()]
        return torch.cat(buffers, dim=1) if buffers else None

    @torch.no_grad()
    def put_buffers(self, B: torch.Tensor) -> None:
        """Write such a row to the buffers of the module."""
        buffers = list(self.mixable_buffers.values())
        for buffer, values in zip(buffers, torch.split(B[0], [b.numel() for b in buffers]), strict=True):
            buffer.copy_(values.view_as(buffer))
