"""The grid of a sweep: its axes, and whether a choice lies on its edge."""

from __future__ import annotations

import math
from collections.abc import Sequence

_SERIES = ((1, 3), (1, 2, 5))  # the usual first digits of a grid
_CLOSE = 1e-3


def split_grid(overrides: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return ordinary overrides, and those with several values: `lr=0.03,0.1` is an axis of the grid.

    >>> split_grid(["topology=ring", "lr=0.03,0.1"])
    (['topology=ring'], [['optimizer.lr=0.03', 'optimizer.lr=0.1']])
    """
    plain, axes = [], []
    for text in overrides:
        key, equals, values = text.partition("=")
        key = "optimizer.lr" if key == "lr" else key
        if "," in values and key not in ("variants", "seeds", "topology") and not values.startswith(("[", "{")):
            axes.append([f"{key}={value}" for value in values.split(",")])
        else:
            plain.append(f"{key}{equals}{values}")
    return plain, axes


def short(point: Sequence[str]) -> str:
    """Return a point of the grid in a few words.

    >>> short(["optimizer.lr=0.03", "policy.period=10"])
    'lr=0.03, policy.period=10'
    """
    return ", ".join(each.removeprefix("optimizer.") if each.startswith("optimizer.lr=") else each for each in point)


def beyond(values: Sequence[str], chosen: str) -> str | None:
    """Return the value that would come next, if the chosen one is the lowest or the highest of several numbers.

    >>> [beyond(["0.03", "0.1", "0.3"], chosen) for chosen in ("0.03", "0.1", "0.3")]
    ['0.01', None, '1']
    >>> beyond(["0.1/L", "0.2/L"], "0.2/L"), beyond(["1e-4", "1e-2"], "1e-4"), beyond(["8", "12"], "12")
    ('0.5/L', '1e-06', '18')
    """
    suffix = "/L" if chosen.endswith("/L") else ""
    numbers = sorted({number for value in values if (number := _number(value)) is not None})
    own = _number(chosen)
    if own is None or len(numbers) < 2 or len(numbers) < len(set(values)) or own not in (numbers[0], numbers[-1]):
        return None
    neighbor = numbers[1] if own == numbers[0] else numbers[-2]
    found = _in_series(numbers, own, neighbor) or float(f"{own * own / neighbor:.2g}")
    return f"{found:g}{suffix}"


def _number(value: str) -> float | None:
    """Return a positive number; None for anything else, which has no neighbor to propose."""
    try:
        number = float(value.removesuffix("/L"))
    except ValueError:
        return None
    return number if 0 < number < math.inf else None


def _in_series(numbers: Sequence[float], own: float, neighbor: float) -> float | None:
    """Return the next number, as far away as the neighbor, if all numbers have the first digits of a series."""
    for digits in _SERIES:
        places = {number: _place(number, digits) for number in numbers}
        here, there = places[own], places[neighbor]
        if here is not None and there is not None and None not in places.values():
            power, digit = divmod(2 * here - there, len(digits))
            return float(f"{digits[digit]}e{power}")
    return None


def _place(number: float, digits: Sequence[int]) -> int | None:
    """Return the position of a number in a series such as …, 0.1, 0.3, 1, 3, 10, …, or None if it is not in it."""
    power = math.floor(math.log10(number) + _CLOSE)
    found = (k for k, digit in enumerate(digits) if abs(number / 10.0**power - digit) < _CLOSE * digit)
    digit = next(found, None)
    return None if digit is None else len(digits) * power + digit
