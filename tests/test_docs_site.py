"""The documentation is true: its code runs and prints what stands below it, and no public name is left out."""

import doctest
import importlib
import pkgutil
import re
import sys
from pathlib import Path

import pytest

import mixwise

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

# Pages whose blocks run one after the other here; the others have tests of their own.
RUN_HERE = ("start.md", "tutorial.md", "extending.md", "looking.md", "memory.md")
RUN_ELSEWHERE = {
    "your-own-model.md": "test_docs.py",
    "text-and-images.md": "test_docs.py",
    "your-own-loop.md": "test_gossip_processes.py",
}

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(mixwise.__path__, "mixwise.")
    if not module.name.endswith("__main__")
)


def blocks(page):
    """(code, what it prints or None) of every Python block of a page."""
    text = (DOCS / page).read_text("utf-8")
    found = re.findall(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```$)?", text, flags=re.MULTILINE | re.DOTALL)
    return [(code, printed or None) for code, printed in found]


@pytest.mark.parametrize("page", RUN_HERE)
def test_a_page_runs_and_prints_what_it_says(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for number, (code, printed) in enumerate(blocks(page)):
        exec(compile(code, f"{page}, block {number}", "exec"), names)
        shown = capsys.readouterr().out
        if printed is not None:
            assert shown == printed, f"{page}, block {number}"


def test_every_page_with_code_is_run_by_a_test():
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if "_build" not in page.parts}
    with_code = {page for page in pages if blocks(page)}
    assert with_code == {*RUN_HERE, *RUN_ELSEWHERE} & pages
    for page, test in RUN_ELSEWHERE.items():
        assert page in (ROOT / "tests" / test).read_text("utf-8")


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(name), verbose=False).failed == 0


def test_there_are_examples_in_docstrings():
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(found) > 20


@pytest.fixture
def names(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    yield importlib.import_module("public_names")
    sys.modules.pop("public_names", None)


def described():
    """The names that the pages of the reference ask Sphinx to describe."""
    found = set()
    for page in (DOCS / "api").glob("*.md"):
        module = ""
        for directive, name in re.findall(r"^\.\. (\S+):: (\S+)$", page.read_text("utf-8"), flags=re.MULTILINE):
            if directive in ("module", "currentmodule"):
                module = name
                found.add(name)
            elif directive == "automodule":
                found.add(name)
            else:
                found.add(f"{module}.{name}")
    return found


def test_the_reference_has_every_public_name(names):
    assert names.missing_names(described()) == []


def test_a_name_that_is_left_out_is_found(names):
    assert "mixwise.graphs.ring" in names.missing_names(described() - {"mixwise.graphs.ring"})
    # known by one of its two names
    assert names.missing_names(described() - {"mixwise.Graph"}) == []


def pictures(page):
    """(text, path) of every picture of a page, in Markdown or HTML."""
    text = page.read_text("utf-8")
    yield from re.findall(r"!\[(.*?)\]\((.*?)\)", text)
    for tag in re.findall(r"<img .*?>", text, flags=re.DOTALL):
        yield re.search(r'alt="(.*?)"', tag)[1], re.search(r'src="(.*?)"', tag)[1]
    for path in re.findall(r'srcset="(.*?)"', text):
        yield "in place of another one", path


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.name)
def test_pictures_are_there_and_have_a_text(page):
    for text, path in pictures(page):
        assert text, f"{path} has no text for those who do not see it"
        assert (page.parent / path).is_file(), f"there is no {path}"


def test_readme_shows_a_picture_of_the_report_first():
    shown = [path for _, path in pictures(ROOT / "README.md")]
    assert shown[0] == "docs/images/report-light.png"
    assert "<picture>" in "\n".join((ROOT / "README.md").read_text("utf-8").splitlines()[:15])
