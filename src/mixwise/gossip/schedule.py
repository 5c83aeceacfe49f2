"""The learning-rate schedule of a run: it is where the run is, also on a rank that has stalled or joined later."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from mixwise.errors import TrainingError, kind_of

_TOO_EARLY = "Detected call of `lr_scheduler.step"  # torch's warning; a rank that joins has not stepped its optimizer


class Schedule:
    """Steps a scheduler along with the run, whose steps all ranks share.

    Args:
        scheduler: any of torch's but ReduceLROnPlateau, also as accelerate wraps it; None if there is none.
        optimizer: torch's own, not a wrapper.

    Attributes:
        origin: where the scheduler is at step 0 of the run.
    """

    def __init__(self, scheduler: object, optimizer: torch.optim.Optimizer) -> None:
        self._scheduler: LRScheduler | None = None
        self.origin = self._reached = 0
        self._advanced = False
        if scheduler is not None:
            self._scheduler = _checked(scheduler, optimizer)
            self.origin = self._reached = _position(self._scheduler)

    @property
    def kind(self) -> str | None:
        """The name of the scheduler's class, if there is one."""
        return None if self._scheduler is None else type(self._scheduler).__name__

    def follow(self, step: int) -> None:
        """Advance to a step of the run."""
        if self._scheduler is None or self.origin + step == self._reached == _position(self._scheduler):
            return
        if _position(self._scheduler) != self._reached:
            raise TrainingError(
                f"the scheduler is at step {_position(self._scheduler)}, but Gossip has left it at {self._reached}: "
                f"it steps the scheduler that it was given, so remove scheduler.step() from the loop"
            )
        if self.origin + step < self._reached:
            raise TrainingError(
                f"the scheduler is at step {self._reached}, beyond the run at {self.origin + step}, and a schedule "
                f"cannot go back; pass a new scheduler to Gossip"
            )
        while self._reached < self.origin + step:
            self._advance(self._scheduler)

    def _advance(self, scheduler: LRScheduler) -> None:
        try:
            if self._advanced:
                scheduler.step()
                return
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", _TOO_EARLY)
                scheduler.step()
            self._advanced = True
        except ValueError as error:
            raise TrainingError(
                f"the scheduler ends before the run does: {error}; make it for the steps of the whole run, which "
                f"inside join() are those of the rank with the most data"
            ) from None
        finally:
            self._reached = _position(scheduler)

    # --- checkpoints ---
    def state_dict(self) -> dict[str, Any] | None:
        """Return the state of the scheduler, if there is one."""
        return None if self._scheduler is None else copy.deepcopy(self._scheduler.state_dict())

    def problem(self, state: dict[str, Any] | None) -> TrainingError | None:
        """Return why such a state cannot be loaded, if it cannot."""
        if (state is None) == (self._scheduler is None):
            return None
        saved, remedy = ("with", "pass one") if self._scheduler is None else ("without", "leave it out")
        return TrainingError(f"this state was saved {saved} a scheduler; {remedy}: mixwise.Gossip(…, scheduler=…)")

    def load_state_dict(self, state: dict[str, Any] | None, step: int) -> None:
        """Continue from such a state, which was saved at a step of the run."""
        if self._scheduler is not None and state is not None:
            self._scheduler.load_state_dict(copy.deepcopy(state))
            self._reached = _position(self._scheduler)
            self.origin = self._reached - step


def _checked(scheduler: object, optimizer: torch.optim.Optimizer) -> LRScheduler:
    inner = getattr(scheduler, "scheduler", None)  # of accelerate's
    found = inner if isinstance(inner, LRScheduler) else scheduler
    if isinstance(found, ReduceLROnPlateau):
        raise TrainingError(
            "ReduceLROnPlateau changes the rate by a loss, not by the step of the run; leave scheduler= out, and step "
            'it with a loss that all ranks share: scheduler.step(gossip.metrics()["loss"])'
        )
    if not isinstance(found, LRScheduler):
        made = "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)"
        raise TrainingError(f"scheduler is {kind_of(scheduler)}; pass the one of your loop, such as {made}")
    if found.optimizer is not optimizer:
        raise TrainingError(
            "the scheduler was made for another optimizer than that of Gossip, and would never change its learning "
            "rate; make both with the same optimizer"
        )
    return found


def _position(scheduler: LRScheduler) -> int:
    """Steps that the scheduler has taken; a chain has no count of its own."""
    while not hasattr(scheduler, "last_epoch"):
        scheduler = scheduler._schedulers[0]  # type: ignore[attr-defined]
    return int(scheduler.last_epoch)


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """Return the mean learning rate of the parameter groups."""
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    return sum(rates) / len(rates)
