"""Errors that a user can act on: each message gives the value, the rule and the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches


class MixwiseError(ValueError):
    """Base of every error that a user's input can cause; the command line shows it as one line."""


class GraphError(MixwiseError):
    """A graph, a graph file or a graph spec that cannot be used as asked."""


class MixingError(MixwiseError):
    """Weights or a Gram matrix that break a rule of mixing."""


class SolverError(MixwiseError):
    """A solver ended without a solution that may be used."""


class SketchError(MixwiseError):
    """A sketch asked of rows, or with a dimension, that it cannot take."""


class DataError(MixwiseError):
    """Data that are missing, damaged or not of the expected form, or that cannot be split as asked."""


class ConfigError(MixwiseError):
    """A recipe, an override or an option that is not allowed."""


class TrainingError(MixwiseError):
    """A training run that cannot start or cannot go on."""


class NetworkError(MixwiseError):
    """A process that did not answer in time, went away, or does not fit to the others.

    Attributes:
        missing: the ranks that are gone or did not answer, as far as it is known.
        operation: what was being done.
        step: in which step, if the network was told.
    """

    def __init__(
        self, message: str, *, missing: tuple[int, ...] = (), operation: str | None = None, step: int | None = None
    ) -> None:
        super().__init__(message)
        self.missing, self.operation, self.step = missing, operation, step


def unknown(what: str, name: str, allowed: Iterable[str]) -> str:
    """One line about a name that does not exist: the closest one that does, then all of them.

    >>> unknown("graph", "rinf", ["ring", "star"])
    "unknown graph 'rinf'; did you mean ring? allowed: ring, star"
    """
    choices = list(allowed)
    close = get_close_matches(name, choices, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown {what} {name!r}; {hint}allowed: {', '.join(choices)}"
