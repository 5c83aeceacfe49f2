"""docs/architecture.md is true: its protocols, calls, packages and arrows are those of the code."""

import re
import sys
from inspect import unwrap
from pathlib import Path

import grimp
import pytest
import torch

import mixwise as mw
from mixwise import protocols
from mixwise.mixing import GmeProblem
from mixwise.protocols import Round
from mixwise.sketch import GaussianSketch
from mixwise.training import Training
from mixwise.training.checks import check_weights
from mixwise.training.driver import Driver

PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text("utf-8")


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)[1]


def drawing(title):
    return re.search(r"^```text\n(.*?)^```", section(title), flags=re.MULTILINE | re.DOTALL)[1]


def table(title):
    """The cells of the first table of a section, line by line."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    end = next((i for i, line in enumerate(lines[2:], 2) if line.startswith("|---")), len(lines) + 1) - 1
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:end]]


def quoted(cell):
    return re.findall(r"`(\w+)`", cell)


# --- packages ---
@pytest.fixture(scope="module")
def imports():
    """The packages and modules directly below mixwise, each with those that it imports."""
    graph = grimp.build_graph("mixwise", exclude_type_checking_imports=True)
    top = graph.find_children("mixwise")
    return {
        one.removeprefix("mixwise."): {
            other.removeprefix("mixwise.")
            for other in top - {one}
            if graph.direct_import_exists(importer=one, imported=other, as_packages=True)
        }
        for one in top
    }


def test_packages_and_arrows_are_those_of_the_import_graph(imports):
    listed = {
        quoted(package)[0]: set(quoted(arrows)) for package, _, arrows in table("Packages and their dependencies")
    }
    assert listed == imports


def test_arrows_go_down_or_to_the_right_in_the_drawing(imports):
    lines = [line.partition("—")[0] for line in drawing("Packages and their dependencies").splitlines()]
    drawn = [name for line in lines for name in re.findall(r"\w+", line)]
    assert sorted(drawn) == sorted(imports)
    arrows = {(one, other) for one, others in imports.items() for other in others}
    assert not {(one, other) for one, other in arrows if drawn.index(one) > drawn.index(other)}


# --- protocols ---
def test_the_methods_of_the_protocols_are_listed():
    for name, _, methods in table("The four protocols"):
        members = vars(getattr(protocols, quoted(name)[0])).items()
        public = {member for member, value in members if callable(value) and not member.startswith("_")}
        assert set(quoted(methods)) == public, name
        assert len(public) <= 8


# --- a round ---
def drawn_calls():
    """(call, the call that it is drawn under), in the order of the drawing."""
    calls, above = [], {}
    for line in drawing("One round through the code").splitlines():
        found = re.match(r"([│├└─ ]*)((?:\w+\.)?\w+)", line)
        if found:
            depth = len(found[1])
            above = {at: call for at, call in above.items() if at < depth}
            calls.append((found[2], above[max(above)] if above else None))
            above[depth] = found[2]
    return calls


def test_the_calls_of_a_round_are_in_the_order_of_the_drawing():
    graph = mw.graphs.ring(6)
    task, network = mw.tasks.random_quadratics(6, dim=40), mw.SimulatedNetwork(graph)
    policy, algorithm = mw.HeterogeneityAware(sketch=GaussianSketch(20)), mw.algorithms.QuasiGlobalMomentum()
    training = Training(task, network, policy, algorithm, lambda rows: torch.optim.SGD(rows, lr=0.001))
    homes = {"Task": task, "Policy": policy, "Algorithm": algorithm, "Network": network, "Training": training}
    classes = {name: type(value) for name, value in homes.items()}
    classes |= {"Driver": Driver, "Round": Round, "GmeProblem": GmeProblem}
    codes = {check_weights.__code__: "check_weights"}
    for call, _ in drawn_calls():
        home, _, method = call.rpartition(".")
        if home:
            codes[unwrap(getattr(classes[home], method)).__code__] = call

    calls, under = {}, []

    def trace(frame, event, _):
        call = codes.get(frame.f_code)
        if call is not None and event == "call":
            calls.setdefault(call, under[-1] if under else None)
            under.append(call)
        elif call is not None and event == "return":
            under.pop()

    sys.setprofile(trace)
    try:
        training.step()
    finally:
        sys.setprofile(None)
    assert list(calls.items()) == drawn_calls()
