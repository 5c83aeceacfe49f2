"""README, CONTRIBUTING and docs/, cut into what tests look at: commands, code in backticks, links, tables."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts),
]

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_PROGRAMS = ("mixwise", "make", "torchrun", "python")


def name(page):
    """A page as errors name it: its path in the repository."""
    return str(page.relative_to(ROOT))


def fenced(page, language):
    """The blocks of this language."""
    return [code for found, code in _FENCED.findall(page.read_text("utf-8")) if found == language]


def prose(page):
    """The page without its blocks."""
    return _FENCED.sub("", page.read_text("utf-8"))


def spans(page):
    """What stands in backticks outside of blocks."""
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(page))]


def links(page):
    """The files to which a page links, without anchors; addresses on the web are not files."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [target.partition("#")[0] for target in targets if "://" not in target and not target.startswith("#")]


def commands(page):
    """Every command of a page, as words: lines of shell blocks, and code in backticks that begins like a command."""
    shell = [block.replace("\\\n", " ") for block in fenced(page, "sh")]
    lines = [part for block in shell for line in block.splitlines() for part in line.split("&&")]
    for line in [*lines, *spans(page)]:
        words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word)]
        if len(words) > 1 and words[0] in _PROGRAMS:
            yield words


def blocks(page):
    """The page at its blank lines: paragraphs, tables and blocks of code; a comment belongs to what follows it."""
    text = re.sub(r"^(<!-- .*? -->)\n+", r"\1\n", page.read_text("utf-8"), flags=re.MULTILINE)
    return re.split(r"\n\n+", text)
