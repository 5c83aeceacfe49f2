"""Your own objects as config.yaml can hold them: the source of a function with the plain values that it uses, the
`repr` of anything else with a checksum of its contents.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import zlib
from types import FunctionType

from mixwise.network.agreement import describe

_PLAIN = (str, int, float, bool)


def described(value: object) -> str | int | float:
    """Return a value as config.yaml can hold it, the same in every process.

    >>> from mixwise.graphs import Graph
    >>> described(0.1), described(Graph(2, [(0, 1)]))
    (0.1, 'Graph(n=2, 1 edges) [cb007a87]')
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, FunctionType):
        return _source(value)
    checksum = zlib.crc32(repr(describe("", value)).encode())
    return f"{re.sub(' at 0x[0-9a-f]+', '', repr(value))} [{checksum:08x}]"


def _source(function: FunctionType) -> str:
    """Return the source of a function, and the plain values that it uses from outside."""
    try:
        text = textwrap.dedent(inspect.getsource(function)).strip()
        outside = inspect.getclosurevars(function)
    except (OSError, TypeError, ValueError, SyntaxError):  # typed into an interpreter
        return function.__qualname__
    used = {**outside.globals, **outside.nonlocals}
    values = [f"{name} = {value!r}" for name, value in used.items() if isinstance(value, _PLAIN)]
    return "\n".join([text, *(f"# {line}" for line in sorted(values))])
