"""Hooks around the steps of your optimizer: the driver keeps X, and the algorithm changes the gradients.

Legend: X, G (1, d).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.hooks import RemovableHandle

from mixwise.errors import NetworkError, TrainingError, kind_of
from mixwise.gossip.caller import line_of
from mixwise.gossip.model_row import ModelRow
from mixwise.training.driver import Driver

# The hooks by which an optimizer is observed; a new observer removes them.
_HOOKS: WeakKeyDictionary[torch.optim.Optimizer, list[RemovableHandle]] = WeakKeyDictionary()


@dataclass
class Tally:
    """Counts the steps of one loop.

    Attributes:
        local_steps: steps from one mixing to the next.
        taken: optimizer steps since the start.
        by_hand: those since the last mixing that the loop took by itself, not by `Gossip.step`.
        line: where the first of these was taken, such as "train.py:31".
        mixed: mixings since the start, also those that a loss of ranks has prevented.
        has_warned: whether the user was warned of steps that are not mixed.
    """

    local_steps: int
    taken: int = 0
    by_hand: int = 0
    line: str = ""
    mixed: int = 0
    has_warned: bool = False

    @property
    def at(self) -> str:
        """The line in parentheses, if it is known."""
        return f" ({self.line})" if self.line else ""


class Steps:
    """Takes the steps of an optimizer, and observes those that you, a scaler or a trainer take.

    Args:
        optimizer: as it was passed to `Gossip`.
        row: the parameters.
        driver: keeps the position of the run.

    Attributes:
        tally: how many steps were taken.
        on_loss: called when a rank is lost inside a step; it replaces the driver.
        before, after: called immediately before and after each step of the optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, row: ModelRow, driver: Driver) -> None:
        self.optimizer, self.row, self.driver = optimizer, row, driver
        self.tally = Tally(driver.local_steps)
        self._counted, self._ours = 0, False
        self.on_loss: Callable[[NetworkError], None] | None = None
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        inner = unwrapped(optimizer)
        for hook in _HOOKS.pop(inner, []):
            hook.remove()
        _HOOKS[inner] = [inner.register_step_pre_hook(self._before), inner.register_step_post_hook(self._after)]

    def take(self, closure: Callable[[], Any] | None, scaler: torch.amp.GradScaler | None) -> Any:
        """Step the optimizer, unless the loop has done so already; return what it returns."""
        if self.tally.by_hand:
            raise TrainingError(
                f"optimizer.step(){self.tally.at} was called before gossip.step(), which takes a step as well: two "
                f"steps for each batch; remove optimizer.step(), or call gossip.mix() after it"
            )
        self._check_closure(closure, scaler)
        self._ours = True
        try:
            if scaler is not None:
                return scaler.step(self.optimizer)
            return self.optimizer.step() if closure is None else self.optimizer.step(closure)
        finally:
            self._ours = False

    def _check_closure(self, closure: object, scaler: object) -> None:
        """Check that there is a closure if the optimizer computes gradients itself, as LBFGS does."""
        inner = unwrapped(self.optimizer)
        if closure is not None or not _requires_closure(type(inner).step):
            return
        name = type(inner).__name__
        if scaler is not None:
            raise TrainingError(f"{name} computes gradients several times in a step, which no scaler supports; omit it")
        raise TrainingError(
            f"{name} computes gradients several times in a step: pass a function that resets them, calls backward() "
            f"and returns the loss, gossip.step(closure)"
        )

    def begin(self) -> None:
        """Begin the round at the current X, unless it has begun."""
        self.driver.begin(self.row.X)

    def count(self) -> None:
        """Count a step as a rest if the optimizer has taken none since the last call: a scaler has skipped it."""
        if self.tally.taken == self._counted:
            self.rest()
        self.accept()

    def accept(self) -> None:
        """Take note that all steps so far were counted or mixed."""
        self._counted, self.tally.by_hand = self.tally.taken, 0

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
        if not (self._ours or self.tally.by_hand):
            self.tally.line = line_of(sys._getframe(1))
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
        self.before()

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
        self.after()
        if not _is_skipped(optimizer):
            self.driver.stepped(float(optimizer.param_groups[0]["lr"]))
            self.tally.taken += 1
            self.tally.by_hand += not self._ours
            if self.driver.turns_gradients:
                self.row.restore_gradients()


@cache
def _requires_closure(step: Callable[..., Any]) -> bool:
    closure = inspect.signature(step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


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
