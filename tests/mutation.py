"""Measures what the tests catch: changes the source in one place at a time and looks for a test that then fails.

    nice -n 19 python tests/mutation.py before.json 0 mixing:40 policies:30 algorithms:30

draws 40 mutants of `mixwise.mixing` and so on (the same ones for the same source and seed, here 0), and prints which
were killed, by which test, and which survived. The worktree is never changed: mutants live in a temporary copy of src
that comes first on PYTHONPATH. The tests run once under a tracer on the unchanged source (before.json.tests); a mutant
then gets only the test files that execute its statement (or, for one outside of functions, use or name its module),
unit tests first. Tests that start processes and those marked soak are left out. Results are written after every mutant,
and the same command resumes an interrupted run; after a change of source or tests, choose another file.

A survivor is either equivalent (no test could tell it from the original, or only by its speed) or a missing assertion:
read them all. Annotations, decorators, imports, docstrings and error texts are never mutated.
"""

import ast
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from shutil import copytree

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = "processes|torchrun|launch|elastic|on_loss|parity|averaging|browser|distributed|failure|listening|lock|docs"
EXECUTED = defaultdict(set)  # the lines of the source that each test file executes
FIXED = {"annotation", "returns", "decorator_list", "exc", "cause", "msg", "bases"}  # fields that are never mutated
NEVER = r"from |import |__all__|if TYPE_CHECKING|\w+: TypeAlias|raise \w+$|cast\(|f['\"]"  # nor are these
SWAPS = "Lt-LtE Gt-GtE Eq-NotEq In-NotIn Is-IsNot Add-Sub Mult-Div And-Or BitAnd-BitOr FloorDiv-Mod min-max any-all \
minimum-maximum argmin-argmax zeros-ones zeros_like-ones_like floor-ceil add_-sub_ mul_-div_ rows-cols clone-detach"
OTHER = {a: b for pair in SWAPS.split() for a, b in itertools.permutations(pair.split("-"))} | {"Pow": "Mult"}


def variants(node):
    """The nodes that may stand in this node's place; some are equal to it."""

    def altered(**fields):
        return type(node)(**dict(ast.iter_fields(node)) | fields)

    def other(operator):
        return getattr(ast, OTHER.get(type(operator).__name__, type(operator).__name__))()

    match node:
        case ast.Compare(ops=ops):
            yield from (altered(ops=[*ops[:k], other(ops[k]), *ops[k + 1 :]]) for k in range(len(ops)))
        case ast.BinOp(op=op) | ast.BoolOp(op=op):
            yield altered(op=other(op))
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)) if value == 0 or value >= 0.1:  # smaller ones are tolerances
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Name(id=word, ctx=ast.Load()) | ast.Attribute(attr=word, ctx=ast.Load()):
            yield altered(**{node._fields[-2]: OTHER.get(word, word)})
        case ast.Call(args=args, keywords=keywords):
            for k, (first, second) in enumerate(itertools.pairwise(args)):
                if type(first) is type(second) is not ast.Starred:  # those of other types fail trivially
                    yield altered(args=[*args[:k], second, *args[k + 1 :]])
            yield from (altered(keywords=keywords[:k] + keywords[k + 1 :]) for k in range(len(keywords)))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if not re.search("^not |==|!=| in | is ", ast.unparse(test)):  # these are negated by the cases above
                yield altered(test=ast.UnaryOp(ast.Not(), test))
        case ast.Raise() | ast.Expr(value=ast.Call()) | ast.Assign(targets=[ast.Subscript()]) | ast.AugAssign():
            yield ast.Pass()


def mutants_of(file, source):
    """All mutants of one file by name: the new source, and the lines that a test must execute to see the change."""
    data, found = source.encode(), {}
    starts = [0, *itertools.accumulate(map(len, data.splitlines(keepends=True)))]

    def add(node, new, lines):
        if isinstance(node, ast.If | ast.While):  # the body can stay as it is written
            node, new = node.test, new.test
        old, text = ast.unparse(node), ast.unparse(new)
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        if text != old:
            text = f"({text})" if isinstance(new, ast.expr) else text
            mutant = (data[:start] + text.encode() + data[end:]).decode()
            found[f"{file}:{node.lineno}:{node.col_offset} {old} → {text}"] = mutant, lines or (1, len(starts))

    def visit(node, lines):
        if re.match(NEVER, ast.unparse(node)) and not isinstance(node, ast.Module):
            return
        if isinstance(node, ast.FunctionDef) or (lines and isinstance(node, ast.stmt)):
            compound = hasattr(node, "body") and not isinstance(node, ast.FunctionDef)  # counts up to its body
            lines = node.lineno, max(node.lineno, node.body[0].lineno - 1) if compound else node.end_lineno
        for new in variants(node):
            add(node, new, lines)
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and name not in FIXED:
                    visit(child, lines)

    visit(ast.parse(source), None)
    return found


def pytest_runtest_protocol(item):
    """Trace the tests: this module is a plugin of the run on the unchanged source."""
    lines, src = EXECUTED[item.location[0]], os.environ["PYTHONPATH"].split(os.pathsep)[0]

    def line(frame, event, _):
        lines.add((frame.f_code.co_filename.removeprefix(f"{src}/"), frame.f_lineno))
        return line

    for settrace in (sys.settrace, threading.settrace):
        settrace(lambda frame, event, _: line if frame.f_code.co_filename.startswith(src) else None)


def pytest_sessionfinish(exitstatus):
    unit_tests_first = sorted(EXECUTED.items(), key=lambda executed: len(executed[1]))
    found = {test: [f"{file}:{line}" for file, line in lines] for test, lines in unit_tests_first}
    Path(os.environ["EXECUTED"]).write_text("" if exitstatus else json.dumps(found))


def first_failure(src, *arguments, **environment):
    """Run pytest on this source, until a test fails."""
    options = ["-m", "pytest", "-xq", "-p", "no:cacheprovider", "-m", "not soak and not trainers"]
    command = [sys.executable, *options, *arguments]
    environment |= {"PYTHONPATH": f"{src}{os.pathsep}{ROOT / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    failure = re.search(r"^(FAILED|ERROR) \S+|\Z", done.stdout, re.MULTILINE)[0] or "crash or timeout"
    return failure if done.returncode else None


def main(out, seed, *packages):
    out, executed, folder = Path(out).resolve(), Path(f"{out}.tests").resolve(), tempfile.TemporaryDirectory()
    src, sample = copytree(ROOT / "src", Path(folder.name, "src")), {}
    if not executed.exists() or not executed.read_text():
        files = sorted(file.relative_to(ROOT) for file in (ROOT / "tests").rglob("test_*.py"))
        tests = [str(file) for file in files if not re.search(LEFT_OUT, str(file))]
        if failed := first_failure(src, "-p", "mutation", "--timeout=1200", *tests, EXECUTED=str(executed)):
            sys.exit(f"{failed} on the unchanged source; fix that first")
    lines_of, found = json.loads(executed.read_text()), json.loads(out.read_text()) if out.exists() else {}
    for package, count in (word.split(":") for word in packages):
        files = sorted((src / "mixwise" / package).rglob("*.py"))
        mutants = dict(pair for file in files for pair in mutants_of(file.relative_to(src), file.read_text()).items())
        sample |= {name: mutants[name] for name in random.Random(seed).sample(sorted(mutants), int(count))}
    for name, (source, (first, last)) in sample.items():
        if name not in found:
            file = src / name.split(":")[0]
            lines = {f"{file.relative_to(src)}:{line}" for line in range(first, last + 1)}
            text = {test: (ROOT / test).read_text() if first == 1 else "" for test in lines_of}
            tests = [test for test in lines_of if file.stem in text[test] or lines.intersection(lines_of[test])]
            original = file.read_text()
            file.write_text(source)
            found[name] = first_failure(src, "--timeout=120", "--timeout-method=thread", *tests) if tests else None
            file.write_text(original)
            out.write_text(json.dumps(found, indent=1, ensure_ascii=False))
        print(found[name] or "SURVIVED", name, sep="   ", flush=True)
    print(f"{sum(found[name] is not None for name in sample)} of {len(sample)} mutants killed")


if __name__ == "__main__":
    main(*sys.argv[1:])
