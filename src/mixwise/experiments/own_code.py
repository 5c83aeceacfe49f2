"""Checksums of your own code: a class or a function, what it inherits from, and what it calls.

Code is your own unless it belongs to mixwise, to Python or to an installed package. Comments, docstrings and layout do
not count; plain values that the code uses from its module do.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from pydantic import BaseModel
from torch import nn

from mixwise.parts import Bound, lookup

_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_INSTALLED = ("site-packages", "dist-packages")
_PYTHON = str(Path(inspect.__file__).parent)


def own_code(value: object) -> str | None:
    """Return a checksum of all code of your own that a value is made of; None if there is none."""
    found = _Found()
    found.add(value)
    if not found.texts:
        return None
    whole = "\0".join(f"{name}\0{text}" for name, text in sorted(found.texts.items()))
    return blake2b(whole.encode(), digest_size=6).hexdigest()


class _Found:
    """The code behind some values.

    Attributes:
        texts: the source of each class, function and module, and the plain values that they use, by name.
    """

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._kept: dict[int, object] = {}  # what was seen, kept so that no other object gets the same id

    def add(self, value: object) -> None:
        """Add the code of a value and of what is inside of it."""
        value = getattr(value, "__wrapped__", value)  # of a cache
        if isinstance(value, _PLAIN) or id(value) in self._kept:
            return
        self._kept[id(value)] = value
        if isinstance(value, FunctionType | type):
            self._add_source(value)
        elif isinstance(value, ModuleType):
            if _is_own(value.__name__):
                self.texts[value.__name__] = _text(_source(value))
        else:
            for inside in _inside(value):
                self.add(inside)

    def _add_source(self, target: FunctionType | type) -> None:
        target = inspect.unwrap(target)
        if not _is_own(target.__module__):
            return
        name, source = f"{target.__module__}:{target.__qualname__}", _source(target)
        functions = [target] if isinstance(target, FunctionType) else list(_functions_of(target))
        codes = [function.__code__ for function in functions]
        text = _text(source) if source else "\n".join(map(_bytecode, codes))
        self.texts[name] = text if self.texts.get(name, text) == text else self.texts[name] + text  # lambdas share one
        for base in target.__bases__ if isinstance(target, type) else ():
            self.add(base)
        outside = dict(vars(sys.modules[target.__module__]))
        for function in functions:
            outside |= function.__globals__
        for function in functions:
            self.add([function.__defaults__, function.__kwdefaults__])
            for used, value in _closure(function).items():
                self._add_used(f"{name} {used}", value)
        for used in sorted({*_outer_names(source), *(each for code in codes for each in _global_names(code))}):
            if used in outside:
                self._add_used(f"{name} {used}", outside[used])

    def _add_used(self, name: str, value: object) -> None:
        if isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(isinstance(each, _PLAIN) for each in value)):
            self.texts[name] = repr(value)
        else:
            self.add(value)


def _inside(value: object) -> Iterable[object]:
    """Return what a value is made of, as far as it may be code of your own."""
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, Bound):
        return value.part.target, value.options
    if isinstance(value, nn.Module):
        return {type(module) for module in value.modules()}
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    module = type(value).__module__
    if not (module.partition(".")[0] == "mixwise" or _is_own(module)):
        return ()
    parts = [type(value), *getattr(value, "__dict__", {}).values()]
    family, kind = getattr(value, "family", None), getattr(value, "kind", None)
    if isinstance(value, BaseModel) and isinstance(family, str) and isinstance(kind, str):  # a section of a recipe
        parts.append(lookup(family, kind).target)
    return parts


# --- where code is, and what it says ---
def _is_own(module: str) -> bool:
    """Whether a module is part of neither mixwise nor Python nor an installed package."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" or file is None:
        return module == "__main__"
    installed = any(part in _INSTALLED for part in Path(file).parts) or file.startswith(_PYTHON)
    return module.partition(".")[0] != "mixwise" and not installed


def _source(target: Any) -> str:
    """Return the source of a class, function or module; empty if it is not known, as in an interpreter."""
    try:
        return textwrap.dedent(inspect.getsource(target))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return ""


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except SyntaxError:  # a lambda, with a part of the statement that it is in
        return None


def _text(source: str) -> str:
    """Return source without comments, docstrings and layout."""
    if (tree := _parsed(source)) is None:
        return source
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            documented = (
                node.body and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
            )
            node.body = node.body[1:] or [ast.Pass()] if documented else node.body
    return ast.unparse(tree)


def _outer_names(source: str) -> Iterator[str]:
    """Yield the names that source uses outside of the bodies of functions: bases, decorators, defaults, fields."""
    waiting: list[ast.AST] = [tree] if (tree := _parsed(source)) is not None else []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += [*node.decorator_list, node.args]
        elif not isinstance(node, ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _global_names(code: CodeType) -> Iterator[str]:
    """Yield the names that code and the code inside of it look up in their module."""
    yield from (each.argval for each in dis.get_instructions(code) if each.opname in _GLOBAL)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _bytecode(code: CodeType) -> str:
    """Return code as text, without the places that it came from."""
    inner = [_bytecode(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {inner}"


def _functions_of(target: type) -> Iterator[FunctionType]:
    """Yield the functions that a class defines."""
    for value in vars(target).values():
        inner = (getattr(value, name, None) for name in ("__func__", "fget", "fset", "func"))
        for each in (value, *inner):
            if isinstance(each, FunctionType) and each.__module__ == target.__module__:
                yield inspect.unwrap(each)


def _closure(function: FunctionType) -> dict[str, object]:
    """Return the variables of enclosing functions that a function uses, by name."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if _is_full(cell)}


def _is_full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # not assigned yet
        return False
    return True
