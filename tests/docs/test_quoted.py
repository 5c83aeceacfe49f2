"""Commands, recipes, keys, kinds and files in README and docs exist; numbers name the command that made them."""

import re
import shlex
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import pytest
import typer
import yaml
from pydantic import TypeAdapter, ValidationError
from torch.distributed.run import get_args_parser

import mixwise
from mixwise.cli import app
from mixwise.errors import ConfigError
from mixwise.experiments import load_recipe, plan_experiment, recipe_names
from mixwise.experiments.config import Recipe, Strict
from mixwise.experiments.grid import split_grid
from mixwise.graphs.spec import SPECS, parse
from mixwise.parts import FAMILIES, build, entries, lookup

SOURCE, ROOT = Path(mixwise.__file__).parent, Path(__file__).parents[2]
DOCS = sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
USERS_OWN = {"train.py", "my.yaml", "config.yaml", "chosen.yaml", "summary.md"}  # the reader's, or written by a run
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


# --- pages, cut into commands, code in backticks, links and tables ---
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
    """The code in backticks outside of blocks."""
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(page))]


def links(page):
    """The files and pictures to which a page links, without anchors; addresses on the web are not files."""
    targets = re.findall(r"(?:\]\(|src=\"|srcset=\")([^)\"\s]+)[)\"]", prose(page))
    return [target.partition("#")[0] for target in targets if "://" not in target and not target.startswith("#")]


def commands(page):
    """Every command of a page, as words: lines of shell blocks, and code in backticks that begins like a command."""
    shell = [block.replace("\\\n", " ") for block in fenced(page, "sh")]
    lines = [part for block in shell for line in block.splitlines() for part in line.split("&&")]
    for line in [*lines, *spans(page)]:
        words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word)]
        if len(words) > 1 and words[0] in ("mixwise", "make", "torchrun", "python"):
            yield words


def blocks(page):
    """The page at its blank lines: paragraphs, tables and blocks of code; a comment belongs to what follows it."""
    text = re.sub(r"^(<!-- .*? -->)\n+", r"\1\n", page.read_text("utf-8"), flags=re.MULTILINE)
    return re.split(r"\n\n+", text)


every_page = pytest.mark.parametrize("page", PAGES, ids=name)


# --- commands ---
def is_placeholder(word):
    """RECIPE, DIR, τ, my.yaml, package.module:Name, runs/digits/…: what the reader puts there."""
    return (
        "…" in word
        or "package." in word
        or bool(re.fullmatch(r"[A-ZΑ-Ωα-ω][A-Z_:=.]*", word))
        or word.endswith((".yaml", ".npy"))
    )


def check_mixwise(words):
    """The options are those of the command; the recipe, its keys, its variants, the graph and the scheme exist."""
    program = typer.main.get_command(app)
    if words[0].startswith("-"):
        assert words[0] in ("--version", "--help", "--install-completion"), words
        return
    assert words[0] in program.commands, f"mixwise has no command {words[0]}"
    if "--help" in words:
        return
    command = program.commands[words[0]]
    context = command.make_context(words[0], [w for w in words[1:] if w != "…"], resilient_parsing=True)
    given = context.params
    if words[0] == "launch" and given["command"]:
        check_launched(given["command"])
    if given.get("recipe") and not is_placeholder(given["recipe"]):
        overrides = [text for text in given["overrides"] or [] if not is_placeholder(text)]
        plain, axes = split_grid(overrides) if words[0] == "sweep" else (overrides, [])
        for row in zip(*axes, strict=False) if axes else [()]:
            plan_experiment(recipe_called(given["recipe"]), [*plain, *row])
    if words[0] in ("graph", "weights", "doctor") and given.get("spec", given.get("graph")):
        check_graph(given.get("spec", given.get("graph")))
    if given.get("scheme"):
        assert given["scheme"] in {*entries("scheme"), "gme"}


def check_launched(words):
    """Check a command that torchrun or `mixwise launch` starts: a recipe, or a script."""
    if words[0] in ("run", "sweep", "doctor"):
        check_mixwise(words)
    elif words[0] == "mixwise":
        check_mixwise(words[1:])
    elif not is_placeholder(words[0]):
        check_script(words)


def check_script(words):
    """The script exists, and knows the options."""
    if words[0] in USERS_OWN:
        return
    assert (ROOT / words[0]).is_file(), f"there is no {words[0]}"
    for option in (word for word in words[1:] if word.startswith("--")):
        assert f'"{option}"' in (ROOT / words[0]).read_text("utf-8"), f"{words[0]} has no {option}"


def check_graph(spec):
    """The spec of a graph can be read, as far as it has no placeholder."""
    if not is_placeholder(spec) and not spec.startswith("file:"):
        parse(spec)


def check_command(words):
    program, *rest = words
    if program == "mixwise":
        check_mixwise(rest)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE)
        assert {word for word in rest if "=" not in word} <= set(targets)
    elif program == "torchrun":
        given = get_args_parser().parse_args(["…" if word == "…" else word for word in rest])
        check_launched([given.training_script, *given.training_script_args])
    elif rest[0] != "-m":
        check_script(rest)


@every_page
def test_commands_exist(page):
    for words in commands(page):
        try:
            check_command(words)
        except (Exception, SystemExit) as error:
            pytest.fail(f"{name(page)}: {' '.join(words)}: {error}")


# --- keys and values of recipes ---
def sections_of_recipes():
    """Every fixed section of a recipe."""
    waiting, found = [Strict], []
    while waiting:
        waiting += (new := waiting.pop().__subclasses__())
        found += new
    return found


FIELDS = {}  # name of a key -> checks of its value, one for every section and part that knows it
for section in sections_of_recipes():
    for key, field in section.model_fields.items():
        annotated = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        FIELDS.setdefault(key, []).append(TypeAdapter(annotated).validate_python)
for family in FAMILIES:
    for part in entries(family):
        for key, option in lookup(family, part).options.items():
            FIELDS.setdefault(key, []).append(partial(option.checked, key))
    FIELDS.setdefault("kind", []).append(lambda kind, family=family: lookup(family, kind))
for family in ("policy", "algorithm", "task"):
    FIELDS[family] = [partial(build, family)]


def fits(key, value):
    """Whether some section or part of a recipe has this key and takes this value."""
    for check in FIELDS.get(key, []):
        with suppress(ValidationError, ConfigError):
            check(value)
            return True
    return False


@every_page
def test_keys_and_values_exist(page):
    """`policy: auto`, `kind: tree`, `objective: both`: key and value are known to some part of a recipe."""
    for code in spans(page):
        if not re.fullmatch(r"[a-z_]+: [^…]+", code):
            continue
        for key, value in yaml.safe_load(code).items():
            if key in FIELDS and not (isinstance(value, str) and is_placeholder(value)):
                assert fits(key, value), f"{name(page)}: `{code}` is not allowed in a recipe"


recipe_called = cache(load_recipe)


@every_page
def test_recipes_in_blocks_are_valid(page):
    for code in fenced(page, "yaml"):
        given = yaml.safe_load(code)
        if "variants" in given:
            plan_experiment(Recipe.model_validate(given))
        for key, value in given.get("base", {}).items():
            assert fits(key, value), f"{name(page)}: {key}: {value}"


def first_cells(page, heading):
    """The code in the first cells of the first table below a heading."""
    table = re.search(rf"^## {heading}$.*?(^\|.*?)\n\n", (ROOT / page).read_text("utf-8"), flags=re.M | re.S)[1]
    return [re.findall(r"`([^`]+)`", line.split("|")[1]) for line in table.splitlines()[2:]]


def test_the_page_of_algorithms_explains_all_policies():
    named = " ".join(code for cell in first_cells("docs/algorithms.md", "Policies") for code in cell)
    missing = [kind for kind in entries("policy") if kind not in named and kind != "fixed"]  # fixed: a scheme's name
    assert missing == []


# --- names with hyphens, graphs, files ---
@cache
def known_names():
    """Every name in the source and the recipes: recipes, variants, kinds, schemes, graphs, keys, arguments, methods."""
    text = "\n".join(path.read_text("utf-8") for path in [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.yaml")])
    return {*recipe_names(), *re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)+|\b\w+(?=\s*[:=(])", text)}


@every_page
def test_names_exist(page):
    """`qg-auto`, `policy.sketch.dim=10`, `task.initial`, `ring:16`: a variant, a key, a method, a graph."""
    known = known_names()
    dotted = r"((?!VARIANT)\w[\w-]*(?:\.\w+)*)=[^=].*|((?:policy|task|optimizer|schedule|algorithm)(?:\.\w+)+)"
    for code in spans(page):
        key = re.fullmatch(dotted, code)
        words = (key[1] or key[2]).split(".") if key else re.findall(r"^[a-z0-9]+(?:-[a-z0-9]+)+$", code)
        unknown = [word for word in words if word not in known and not word.isupper()]
        assert not unknown, f"{name(page)}: `{code}`: there is no {unknown}"
        if re.fullmatch(rf"(?:{'|'.join(SPECS)}):[\w,.=]+", code) and code.islower():  # not a form, such as ring:N
            check_graph(code)


@cache
def file_names():
    """The names of our files, wherever they are."""
    return {path.name for top in ("src", "tests", "docs", "examples", "benchmarks") for path in (ROOT / top).rglob("*")}


@every_page
def test_files_exist(page):
    """Links, and files in backticks, relative to the page, the repository, docs/ or the package."""
    for target in links(page):
        assert (page.parent / target).exists(), f"{name(page)} links to {target}"
    places = [page.parent, ROOT, ROOT / "docs", SOURCE]
    for code in [*spans(page), *re.findall(r"\b(?:docs|examples|tests)/[\w/-]+\.(?:md|py)", prose(page))]:
        if not re.fullmatch(r"[\w./-]+\.(py|md|yaml|toml)", code) or ("/" not in code and code in USERS_OWN):
            continue
        there = any((place / code).is_file() for place in places) or ("/" not in code and code in file_names())
        assert there, f"{name(page)}: there is no {code}"


# --- numbers ---
MEASURED = re.compile(r"<!-- measured: (.+?) -->")
FIGURES = re.compile(r"±|\d ?%|\d\.\d")


def shows_figures(block):
    """A table or a block of output with figures of runs."""
    body = MEASURED.sub("", block).lstrip()
    return body.startswith(("|", "```text", "```\n")) and bool(FIGURES.search(body))


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs" / "studies").glob("*.md"))], ids=name)
def test_tables_of_results_name_the_command_that_made_them(page):
    """A comment `<!-- measured: … -->` directly above each; commands in it exist, as everywhere."""
    for block in blocks(page):
        if shows_figures(block):
            assert MEASURED.search(block), f"{name(page)}: no `<!-- measured: COMMAND -->` above\n{block[:300]}"
