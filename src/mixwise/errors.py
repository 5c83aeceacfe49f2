"""Errors that a user can act on: each message gives the value, the rule and the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches
from re import sub as _sub
from types import BuiltinFunctionType, FunctionType

_LONGEST_WORD, _LONGEST = 250, 1500  # characters of an error message
_FUNCTIONS = (FunctionType, BuiltinFunctionType)


class MixwiseError(ValueError):
    """Base class of all errors that a user's input can cause; the command line shows them as one line.

    The message is one line without long values: of a longer word, 100 characters are kept, and of a longer message its
    beginning and its end.

    >>> len(str(MixwiseError(f"{'9' * 5000} is not a number; give one")))
    128
    """

    def __init__(self, message: str = "") -> None:
        line = _sub(r"\s*[\r\n]\s*", " ", message)
        line = _sub(rf"\S{{{_LONGEST_WORD},}}", lambda word: f"{word[0][:100]} …", line)
        super().__init__(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 400]} … {line[-300:]}")


class GraphError(MixwiseError):
    """A graph, a graph file or a graph spec is invalid, or does not fit its use."""


class MixingError(MixwiseError):
    """Weights or a Gram matrix break a rule of mixing."""


class NotFiniteError(MixingError):
    """A number that weights are computed from is NaN, infinite, or so large that its square overflows.

    Attributes:
        node: the first node that has such a number, if known.
    """

    def __init__(self, message: str, *, node: int | None) -> None:
        super().__init__(message)
        self.node = node


class SolverError(MixwiseError):
    """A solver found no usable solution."""


class SketchError(MixwiseError):
    """Rows cannot be sketched, or a sketch has invalid parameters."""


class DataError(MixwiseError):
    """Data is missing, damaged or malformed, or cannot be partitioned as requested."""


class ConfigError(MixwiseError):
    """A recipe, an override or an option is not allowed."""


class TrainingError(MixwiseError):
    """A training run cannot start or continue."""


class DivergedError(TrainingError):
    """The values of a training run are no longer finite, or overflow as they are mixed.

    Attributes:
        node: the first node that has such a value, if known.
        step: the step in which it was found, if known.
        learning_rate: the learning rate that was set for the run, before any schedule, if known.
    """

    def __init__(
        self, message: str, *, node: int | None, step: int | None = None, learning_rate: float | None = None
    ) -> None:
        super().__init__(message)
        self.node, self.step, self.learning_rate = node, step, learning_rate


class NetworkError(MixwiseError):
    """A process did not answer in time, disconnected, or does not match the others.

    Attributes:
        missing: the ranks that are known to be gone or did not answer.
        operation: the operation that failed.
        step: the step in which it failed, if known.
    """

    def __init__(
        self, message: str, *, missing: tuple[int, ...] = (), operation: str | None = None, step: int | None = None
    ) -> None:
        super().__init__(message)
        self.missing, self.operation, self.step = missing, operation, step


def kind_of(value: object) -> str:
    """An argument of the wrong kind, in words.

    >>> kind_of("ring"), kind_of(int), kind_of(len), kind_of([])
    ("'ring'", 'the class int', 'the function len', 'an object of type list')
    """
    if isinstance(value, str | int | float | None):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, _FUNCTIONS):
        return f"the function {value.__name__}"
    return f"an object of type {type(value).__name__}"


def unknown(what: str, name: str, allowed: Iterable[str]) -> str:
    """One line about a name that does not exist: the closest one that does, then all of them.

    >>> unknown("graph", "rinf", ["ring", "star"])
    "unknown graph 'rinf'; did you mean ring? allowed: ring, star"
    """
    choices = list(allowed)
    close = get_close_matches(name, choices, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown {what} {name!r}; {hint}allowed: {', '.join(choices)}"
