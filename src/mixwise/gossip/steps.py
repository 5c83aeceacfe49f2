"""What happens around the steps of somebody's optimizer: the mixer remembers X, the algorithm turns the gradients.

Legend: X, G (1, d).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.hooks import RemovableHandle

from mixwise.errors import NetworkError, TrainingError
from mixwise.gossip.model_row import ModelRow
from mixwise.train.mixer import Mixer

# The hooks by which an optimizer is watched; whoever watches it next takes them off.
_HOOKS: WeakKeyDictionary[torch.optim.Optimizer, list[RemovableHandle]] = WeakKeyDictionary()


class Steps:
    """Watches an optimizer, whoever calls it: the user, a scaler, or `Gossip.step`.

    Attributes:
        taken: steps of the optimizer since the start.
        since_mixing: steps since the last mixing, those that were only counted (`rest`) included.
        remembered: whether the mixer knows X as it was at the last mixing.
        paused: whether the next mixing is left out, so that nobody needs to know of the steps.
        on_loss: what to do when a rank is lost on the way; then the mixer is another one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, row: ModelRow, mixer: Mixer) -> None:
        self.row, self.mixer = row, mixer
        self.taken = self.since_mixing = 0
        self.remembered = self.paused = False
        self.on_loss: Callable[[NetworkError], None] | None = None
        self._turns = mixer.turns_gradients
        for hook in _HOOKS.pop(optimizer, []):
            hook.remove()
        _HOOKS[optimizer] = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def remember(self) -> None:
        """Before the first step after a mixing: X, which has settled, is what U counts from."""
        if not self.remembered and not self.paused:
            self.mixer.remember(self.row.X)
            self.remembered = True

    def rest(self) -> None:
        """A step without a gradient and without a movement; some algorithms count their steps."""
        if self._turns and not self.paused:
            self.mixer.algorithm.direction(torch.zeros_like(self.row.X), self.mixer.network)
        self.since_mixing += 1

    def mixed(self) -> None:
        """A mixing is done."""
        self.remembered, self.since_mixing = False, 0

    def _before(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        while self._turns or not self.remembered:
            try:
                self._prepare(optimizer, args, kwargs)
                break
            except NetworkError as error:
                if self.on_loss is None:
                    raise
                self.on_loss(error)

    @torch.no_grad()
    def _prepare(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.remembered:
            self.row.settle()
            self.remember()
        if not self._turns or self.paused or _is_skipped(optimizer):
            return
        if len(args) > 1 or kwargs.get("closure") is not None:  # the first one is the optimizer
            raise TrainingError(
                f"{type(self.mixer.algorithm).__name__} changes the gradients before the step, but with a closure they "
                f"are computed inside it; call backward() before the step, or take algorithm=None (D-SGD)"
            )
        G = self.row.gradients()
        scale = getattr(optimizer, "grad_scale", None)  # a scaler leaves it to the fused optimizers to divide by it
        if scale is not None:
            G.div_(scale)
        self.mixer.direct(G, optimizer, self.row.views(G[0]))
        if scale is not None:
            G.mul_(scale)
        self.row.use_gradients(G)

    def _after(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _is_skipped(optimizer):
            return
        self.mixer.lr += float(optimizer.param_groups[0]["lr"])
        self.taken += 1
        self.since_mixing += 1


def _is_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a scaler has told the optimizer to do nothing, which it tells fused ones in this way."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found > 0)
