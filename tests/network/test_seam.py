"""The seam between networks and what uses them: these numbers only fall (`docs/architecture.md`)."""

import ast
from functools import lru_cache
from pathlib import Path

import mixwise
from builders import cases

SOURCE = Path(mixwise.__file__).parent
CONCRETE = {"SimulatedNetwork", "DistributedNetwork", "FaultyNetwork", "GuardedNetwork", "HostileNodes"}


@lru_cache
def nodes(inside: bool) -> list[ast.AST]:
    """The syntax of the modules inside of the package of networks, or of all others."""
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if (path.parent.name == "network") == inside]
    return [node for path in paths for node in ast.walk(ast.parse(path.read_text("utf-8")))]


def sets_step(node) -> bool:
    """Assigns `network.step` or defines a setter of it."""
    if isinstance(node, ast.Assign | ast.AugAssign | ast.For):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(t, ast.Attribute) and t.attr == "step" and "network" in ast.unparse(t) for t in targets)
    return isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "step.setter" for d in node.decorator_list)


def reads_paused(node) -> bool:
    """Reads whether traffic is paused, or pauses it."""
    return isinstance(node, ast.Attribute) and ast.unparse(node).endswith((".paused", "traffic.pause"))


def asks_for_a_class(node) -> bool:
    """Names a concrete network otherwise than to construct it: in `isinstance`, or as an annotation."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
        return any(name in ast.unparse(node.args[1]) for name in CONCRETE)
    return isinstance(node, ast.arg) and node.annotation is not None and ast.unparse(node.annotation) in CONCRETE


@cases(
    "found, inside, most",
    (sets_step, (True, False), 0),
    (reads_paused, (True, False), 0),
    (asks_for_a_class, (False,), 8),
)
def test_the_seam_of_the_network_does_not_grow(found, inside, most):
    """Lower the number when it falls."""
    assert sum(found(node) for where in inside for node in nodes(where)) <= most
