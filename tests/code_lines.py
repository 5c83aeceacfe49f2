"""Counts lines of code, not blank lines, comments or docstrings: `python tests/code_lines.py src/mixwise`."""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(source: str) -> int:
    """The number of lines that hold code.

    >>> code_lines('"A docstring."\\n\\nx = 1  # one\\n# two\\n')
    1
    """
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {line for t in tokens if t.type not in _LAYOUT for line in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and body and ast.get_docstring(node) is not None:
            lines -= set(range(body[0].lineno, (body[0].end_lineno or 0) + 1))
    return len(lines)


def main(root: Path) -> None:
    """Print packages, their lines and their files, the largest first."""
    lines, files = Counter[str](), Counter[str]()
    for path in root.rglob("*.py"):
        package = path.relative_to(root).parts[0]
        lines[package] += code_lines(path.read_text("utf-8"))
        files[package] += 1
    for package, count in lines.most_common():
        print(f"{count:>7}{files[package]:>5}  {package}")
    print(f"{lines.total():>7}{files.total():>5}  in all")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
