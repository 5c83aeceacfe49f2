"""The documentation is true: its code runs and prints what stands below it, and no public name is left out."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import mixwise
from image_trees import image_tree
from mixwise.experiments import load_recipe, plan_experiment
from mixwise.experiments.build import prepare
from tiny_text import save_csv, save_model

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Pages that need no files; the others have tests of their own.
RUN_AS_THEY_ARE = ("start.md", "tutorial.md", "extending.md", "looking.md", "memory.md", "your-own-model.md")
IN_PROCESSES = dict.fromkeys(("your-own-loop.md", "from-ddp.md"), "test_gossip_processes.py")
RUN_ELSEWHERE = {"text-and-images.md": "test_docs.py", **IN_PROCESSES}
PACKAGES = pkgutil.walk_packages(mixwise.__path__, "mixwise.")
MODULES = sorted(module.name for module in PACKAGES if not module.name.endswith("__main__"))


def blocks(page):
    """(code, what it prints or None) of every Python block of a page."""
    found = re.findall(
        r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```$)?", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    return [(code, printed or None) for code, printed in found]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the blocks of a page one after the other, which must print what stands below them; returns all of it."""
    monkeypatch.chdir(tmp_path)

    def run_blocks(page, chosen=slice(None)):
        names, text = {}, ""
        for number, (code, printed) in enumerate(blocks(page)[chosen]):
            exec(compile(code, f"{page.name}, block {number}", "exec"), names)
            shown = capsys.readouterr().out
            assert printed in (None, shown), f"{page.name}, block {number}"
            text += shown
        return text

    return run_blocks


# --- code on pages ---
@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("page", RUN_AS_THEY_ARE)
def test_a_page_runs_and_prints_what_it_says(page, run):
    shown = run(DOCS / page)
    if page == "your-own-model.md":  # as the comments beside the code say
        assert "torch.Size([16, 162])" in shown
        assert "\n130\n" in shown


@pytest.mark.xdist_group("transformers")
def test_text_and_images(run, tmp_path, monkeypatch):
    monkeypatch.setenv("MIXWISE_DATA", str(tmp_path))
    image_tree(tmp_path / "photos", classes=("ant", "bee"), train=20, val=4)
    save_csv(tmp_path / "ag_news")
    save_model(tmp_path / "minilm", "bert")
    shown = run(DOCS / "text-and-images.md")
    assert "('ant', 'bee') images of 32 × 32 pixels with 2 classes" in shown
    assert "'accuracy_worst'" in shown
    assert "numbers per node" in shown


def test_the_example_of_the_readme_prints_what_stands_below_it(run):
    """Up to 3 points: rounding differs between processors, and steps amplify it."""
    page = ROOT / "README.md"
    ((code, _),) = blocks(page)
    expected = re.search(r"^```text\naccuracy (\d+)%", page.read_text("utf-8"), flags=re.M)[1]
    assert int(re.search(r"accuracy (\d+)%", run(page))[1]) == pytest.approx(int(expected), abs=3)
    assert Path("model.safetensors").stat().st_size > 4 * (64 * 32 + 32 * 10)
    other = int(re.search(r'"metropolis-hastings" after "ring:16": (\d+) %', code)[1])
    exec(code.replace('"ring:16",', '"ring:16", "metropolis-hastings",', 1), names := {})
    assert 100 * names["run"].last.values["accuracy"] == pytest.approx(other, abs=3)


@pytest.mark.parametrize(("variant", "row"), [("dsgd-momentum-metropolis", "Metropolis-Hastings"), ("auto", "pairs")])
def test_the_readme_shows_what_the_recipe_digits_gives(variant, row):
    expected = re.search(rf"^\| {row}.*?\| ([\d.]+) ± ", (ROOT / "README.md").read_text("utf-8"), flags=re.M)[1]
    experiment = plan_experiment(load_recipe("digits"), [f"variants={variant}"])
    (config,) = experiment.runs.values()
    ends = [list(prepare(config, seed)())[-1].values["accuracy"] for seed in experiment.recipe.seeds]
    assert 100 * sum(ends) / len(ends) == pytest.approx(float(expected), abs=3.0)


def test_every_page_with_code_is_run_by_a_test():
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if "_build" not in page.parts}
    assert {page for page in pages if blocks(DOCS / page)} == {*RUN_AS_THEY_ARE, *RUN_ELSEWHERE} & pages
    for page, test in RUN_ELSEWHERE.items():
        (path,) = (ROOT / "tests").rglob(test)
        assert page in path.read_text("utf-8")


# --- docstrings and the reference ---
def test_examples_in_docstrings():
    results = {name: doctest.testmod(importlib.import_module(name)) for name in MODULES}
    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values()) > 20


# --- pictures ---


def test_pictures_have_a_text():
    for page in (ROOT / "README.md", *DOCS.glob("*.md")):
        text = page.read_text("utf-8")
        assert "![](" not in text, page
        assert all('alt="' in tag for tag in re.findall(r"<img .*?>", text, flags=re.DOTALL)), page
