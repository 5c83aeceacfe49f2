"""Hooks around the steps of your optimizer: the driver keeps X, and the algorithm changes the gradients.

Legend: X, G (1, d).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.hooks import RemovableHandle

from mixwise.errors import NetworkError, TrainingError, kind_of
from mixwise.gossip.model_row import ModelRow
from mixwise.training.driver import Driver

# The hooks by which an optimizer is observed; a new observer removes them.
_HOOKS: WeakKeyDictionary[torch.optim.Optimizer, list[RemovableHandle]] = WeakKeyDictionary()


class Steps:
    """Observes an optimizer, whether it is called by you, by a scaler, or by `Gossip.step`.

    Attributes:
        taken: optimizer steps since the start.
        on_loss: called when a rank is lost inside a step; it replaces the driver.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, row: ModelRow, driver: Driver) -> None:
        self.row, self.driver = row, driver
        self.taken = self._counted = 0
        self.on_loss: Callable[[NetworkError], None] | None = None
        for hook in _HOOKS.pop(optimizer, []):
            hook.remove()
        _HOOKS[optimizer] = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def begin(self) -> None:
        """Begin the round at the current X, unless it has begun."""
        self.driver.begin(self.row.X)

    def count(self) -> None:
        """Count a step as a rest if the optimizer has taken none since the last call: a scaler has skipped it."""
        if self.taken == self._counted:
            self.rest()
        self._counted = self.taken

    def rest(self) -> None:
        """Count a step without gradient and movement; some algorithms count their steps."""
        driver = self.driver
        if driver.turns_gradients:
            driver.algorithm.direction(torch.zeros_like(self.row.X), driver.algorithm_state, driver.network)
        driver.stepped(0.0)

    def _before(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        closures = [closure for closure in (*args[1:], kwargs.get("closure")) if closure is not None]
        if not all(map(callable, closures)):
            raise TrainingError(f"closure is {kind_of(closures[0])}; pass a loss by its name: gossip.step(loss=loss)")
        while self.driver.turns_gradients or not self.driver.begun:
            try:
                if not self.driver.begun:
                    self.row.settle()
                    self.begin()
                if self.driver.turns_gradients and not _is_skipped(optimizer):
                    self._turn_gradients(optimizer, bool(closures))
                break
            except NetworkError as error:
                if self.on_loss is None:
                    raise
                self.on_loss(error)

    @torch.no_grad()
    def _turn_gradients(self, optimizer: torch.optim.Optimizer, in_closure: bool) -> None:
        """Let the optimizer see what the algorithm makes of the gradients, until its step is done."""
        if in_closure:
            raise TrainingError(
                f"{type(self.driver.algorithm).__name__} changes the gradients before the step, but with a closure "
                f"they are computed inside of it; call backward() before the step, or use algorithm=None (D-SGD)"
            )
        G = self.row.gradients()
        scale = getattr(optimizer, "grad_scale", None)  # a scaler leaves it to fused optimizers to divide by it
        if scale is not None:
            G.div_(scale)
        D = self.driver.directions(G, optimizer, lambda D: self.row.views(D[0]))
        self.row.use_gradients(D if scale is None else D * scale)

    def _after(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not _is_skipped(optimizer):
            self.driver.stepped(float(optimizer.param_groups[0]["lr"]))
            self.taken += 1
            if self.driver.turns_gradients:
                self.row.restore_gradients()


def _is_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a scaler has told a fused optimizer to do nothing."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found > 0)


def unwrapped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return torch's optimizer inside of accelerate's, which has no hooks."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer


def accumulates(optimizer: torch.optim.Optimizer) -> bool:
    """Whether accelerate accumulates gradients, so that its optimizer ignores `step`."""
    state = getattr(optimizer, "gradient_state", None)
    return state is not None and not state.sync_gradients
