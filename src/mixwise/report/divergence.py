"""diverged.json: where a run ended because its values were no longer finite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mixwise.errors import DivergedError
from mixwise.storage import contents, write_text

DIVERGED = "diverged.json"
_MAX_FILE = 1 << 20  # bytes
Natural = Annotated[int, Field(ge=0, lt=2**53)]


class Divergence(BaseModel):
    """The end of a run that diverged.

    Attributes:
        step, node: where that was found; the node is not always known.
        learning_rate: the learning rate of the run, before any schedule.
        message: the error in words.
    """

    model_config = ConfigDict(frozen=True)
    step: Natural
    node: Natural | None = None
    learning_rate: float | None = None
    message: str = ""

    @property
    def error(self) -> DivergedError:
        """The error that has ended the run."""
        return DivergedError(self.message, node=self.node, step=self.step, learning_rate=self.learning_rate)


def write_divergence(error: DivergedError, place: Path) -> Divergence:
    """Write the end of a run into its folder."""
    assert error.step is not None  # it was training
    found = Divergence(step=error.step, node=error.node, learning_rate=error.learning_rate, message=str(error))
    write_text(place / DIVERGED, found.model_dump_json())
    return found


def read_divergence(place: Path) -> Divergence | None:
    """Return where the run of a folder diverged, or None if it did not."""
    try:
        return Divergence.model_validate_json(contents(place / DIVERGED, _MAX_FILE, follow=False))
    except (OSError, ValidationError):
        return None


def divergences_in_words(found: Mapping[int, Divergence], seeds: int) -> str:
    """Return which of the seeds of a variant diverged, where, and with which learning rates.

    >>> divergences_in_words({1: Divergence(step=37, node=3, learning_rate=10.0)}, seeds=5)
    '1 of 5 seeds diverged (seed 1 in step 37 at node 3; learning rate 10)'
    """
    where = ", ".join(
        f"seed {seed} in step {each.step}" + ("" if each.node is None else f" at node {each.node}")
        for seed, each in sorted(found.items())
    )
    rates = sorted({each.learning_rate for each in found.values() if each.learning_rate is not None})
    rate = f"; learning rate {', '.join(f'{rate:g}' for rate in rates)}" if rates else ""
    return f"{count_in_words(len(found), seeds)} ({where}{rate})"


def count_in_words(diverged: int, seeds: int) -> str:
    """Return how many of the seeds of a variant diverged.

    >>> count_in_words(2, 5), count_in_words(5, 5), count_in_words(1, 1)
    ('2 of 5 seeds diverged', 'all 5 seeds diverged', 'diverged')
    """
    if seeds == 1:
        return "diverged"
    return f"all {seeds} seeds diverged" if diverged == seeds else f"{diverged} of {seeds} seeds diverged"
