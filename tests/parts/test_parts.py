"""Parts are declared once: names, options, errors and words follow from the class or function."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, replace
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pytest

import mixwise.parts as p
from builders import cases, refused
from mixwise.errors import ConfigError

if TYPE_CHECKING:
    from fractions import Fraction


@p.family("algorithm")
class Algorithm:
    """A base class of toys."""


@p.family("policy")
class Policy:
    """Another one."""


@p.part("plain", title="Plain SGD", step="X′")
@dataclass(frozen=True)
class Plain(Algorithm):
    """No options."""


@p.part("momentum", title="toy momentum", cite="Toy et al. 2021")
@dataclass(frozen=True)
class Momentum(Algorithm):
    """Every kind of option."""

    beta: p.Unit = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    nesterov: bool = True
    mu: p.Unit | None = None
    steps: p.Count = 1
    mode: Literal["fast", "slow"] = "fast"
    sizes: tuple[p.Count, ...] = ()
    inner: Algorithm = Plain()
    matrix: np.ndarray | None = field(default=None, compare=False)


@p.part("budget", title="matchings with a budget of {budget:g}")
@dataclass(frozen=True)
class Budget(Policy):
    """A title with a value in it."""

    budget: p.Share = 0.5
    rounds: p.Count | None = None

    def __post_init__(self):
        if self.rounds is not None and self.rounds > 9:
            raise ConfigError(f"rounds = {self.rounds}; at most 9 are useful: take fewer")


@p.part("all-of", title="all of them")
@dataclass(frozen=True)
class AllOf(Policy):
    """Refers to its own base class, and describes itself."""

    policies: "tuple[Policy, ...]"
    otherwise: "Policy | None" = None

    def describe(self) -> str:
        return "all of: " + "; ".join(map(p.words, self.policies))


@p.part("weighted", "policy", title="weights from {weights}")
@dataclass(frozen=True)
class Weighted:
    """A function, or the name of one."""

    weights: Annotated[Callable[..., Any], p.FAMILIES["scheme"]]


@p.part("halves", "scheme", title="half of everything")
def halves(graph):
    """A function without options."""
    return graph / 2


@p.part("scaled", "scheme", title="scaled weights")
def scaled(graph, by: p.Positive = 2.0, *, offset: p.NonNegative = 0.0):
    """A function with options."""
    return graph * by + offset


def bound(function, options):
    return p.Bound(p.declaration(function), options)


TOYS = (Plain, Momentum, Budget, AllOf, Weighted, halves, scaled)


@pytest.fixture(autouse=True)
def toys_by_name(monkeypatch):
    """The toys are the only parts that there are."""
    index = {}
    for about in map(p.declaration, TOYS):
        index.setdefault(about.family, {})[about.name] = {"where": about.where, "title": about.title}
    monkeypatch.setattr(p.registry, "_index", lambda: index)
    monkeypatch.setitem(p.FAMILIES, "policy", p.FAMILIES["policy"]._replace(default="weighted"))


# --- values of a recipe become parts ---
def test_a_name_or_a_kind_with_options_becomes_the_part():
    assert p.build("algorithm", "plain") == Plain()
    assert p.build("algorithm", {"kind": "momentum", "beta": 0, "mu": None, "sizes": [1, 2]}) == Momentum(
        0, sizes=(1, 2)
    )
    made = Momentum(0.5)
    assert p.build("algorithm", made) is made


def test_defaults_are_those_of_the_constructor():
    assert p.build("algorithm", "momentum") == p.build("algorithm", {"kind": "momentum"}) == Momentum()


def test_parts_nest():
    inner = {"kind": "momentum", "inner": {"kind": "momentum", "inner": "plain", "steps": 3}}
    assert p.build("algorithm", inner) == Momentum(inner=Momentum(steps=3))
    both = {"kind": "all-of", "policies": [{"kind": "budget", "budget": 1}, "budget"], "otherwise": "budget"}
    assert p.build("policy", both) == AllOf((Budget(1.0), Budget()), Budget())


def test_a_number_in_yaml_may_be_a_string_but_a_bool_is_no_number():
    assert p.build("algorithm", {"kind": "momentum", "beta": "1e-3"}).beta == 0.001  # YAML reads 1e-3 as a string
    for options in ({"beta": True}, {"steps": True}, {"steps": 2.0}, {"steps": "2"}, {"nesterov": 2}):
        refused(p.OptionError, "input should be a valid", p.build, "algorithm", {"kind": "momentum", **options})


def test_functions_are_parts_with_the_rest_of_their_arguments_open():
    assert p.build("scheme", "halves") is halves
    assert p.build("scheme", {"kind": "scaled", "by": 3})(2) == 6
    assert (
        p.build("scheme", "scaled") == p.build("scheme", {"kind": "scaled", "by": 2.0}) != p.build("scheme", "halves")
    )
    assert p.supply(bound(scaled, {"by": 4}), graph=1, by=5, seed=3) == 4


def test_the_name_of_a_scheme_is_a_policy():
    assert p.build("policy", "halves") == Weighted(halves)
    assert p.build("policy", {"weights": {"kind": "scaled", "by": 3}}) == Weighted(bound(scaled, {"by": 3}))


# --- wrong values ---
BUDGET, ALL_OF = {"kind": "budget"}, {"kind": "all-of", "policies": []}


@cases(
    "family, value, says",
    ("algorithm", "momentun", ": unknown algorithm 'momentun'; did you mean momentum? allowed: plain, momentum, "),
    ("algorithm", {"kind": 3}, ".kind = 3: kind is the name of an algorithm; choose one of plain, momentum"),
    ("algorithm", ["plain"], " = ['plain']: an algorithm is written as its name, or as {kind: NAME, option: …}"),
    ("algorithm", {"kind": "momentum", "bta": 1}, ": unknown key 'bta'; did you mean beta? allowed: beta, betas, "),
    ("algorithm", {"kind": "momentum", "matrix": 1}, ": unknown key 'matrix'"),
    ("algorithm", {"kind": "plain", "beta": 1}, ": unknown key 'beta'; plain has no options"),
    ("algorithm", {"kind": "momentum", "beta": 1.5}, ".beta = 1.5: input should be less than 1"),
    ("algorithm", {"kind": "momentum", "beta": float("nan")}, ".beta = nan: input should be a finite number"),
    ("algorithm", {"kind": "momentum", "mu": 1.5}, ".mu = 1.5: input should be less than 1"),
    ("algorithm", {"kind": "momentum", "mode": "slwo"}, ".mode = 'slwo': input should be 'fast' or 'slow'"),
    ("algorithm", {"kind": "momentum", "sizes": [1, 0]}, ".sizes.1 = 0: input should be greater"),
    ("algorithm", {"kind": "momentum", "inner": {"kind": "momentum", "beta": -1}}, ".inner.beta = -1: input should"),
    ("policy", ALL_OF | {"policies": ["budget", BUDGET | {"budget": 2}]}, ".policies.1.budget = 2: input should"),
    ("policy", ALL_OF | {"otherwise": "x"}, ".otherwise: unknown policy 'x'"),
    ("policy", "all-of", ": policies is missing; all-of needs it: add policies: …"),
    ("policy", ALL_OF | {"otherwise": BUDGET | {"rounds": 10}}, ".otherwise: rounds = 10; at most 9"),  # its own rule
    ("policy", {"kind": "toys.parts:ToyPolicy", "strength": 0}, ".strength = 0: input should be greater than or equal"),
    ("policy", {"kind": "toys.parts:ToyPolicy", "strenght": 1}, ": unknown key 'strenght'; did you mean strength?"),
    ("policy", {"kind": "toys.parts:Undeclared", "share": 1}, ".share = 1: input should be less than 1"),
    ("policy", "toys.parts:Missing", ": 'toys.parts:Missing' cannot be imported: toys.parts has no Missing; correct"),
    ("policy", "toy:Mine", ": 'toy:Mine' cannot be imported: No module named 'toy'; install its package"),
    ("policy", "toys.parts:value", ": 'toys.parts:value' is neither a class nor a function; name one"),
    ("algorithm", "toys.parts:ToyPolicy", ": toys.parts:ToyPolicy is declared as policy; name an algorithm here"),
)
def test_an_error_is_one_line_with_path_value_and_rule(family, value, says):
    refused(p.OptionError, "^" + re.escape(f"policy.inner{says}"), p.build, family, value, "policy.inner")


# --- the constructor ---
def test_the_constructor_checks_the_same_rules():
    refused(p.OptionError, r"^beta = 1\.5: input should be less than 1", Momentum, 1.5)
    refused(p.OptionError, r"^steps = 0: ", Momentum, steps=0)
    refused(p.OptionError, r"^budget = 0\.0: ", replace, Budget(), budget=0.0)
    refused(TypeError, "gamma", Momentum, gamma=1)
    refused(FrozenInstanceError, "beta", setattr, Momentum(), "beta", 0.1)


def test_the_constructor_takes_what_python_has():
    assert Momentum(sizes=[3, 4]).sizes == (3, 4)
    assert Momentum(np.float64(0.5), steps=np.int64(3)) == Momentum(0.5, steps=3)
    matrix = np.eye(2)
    assert Momentum(matrix=matrix).matrix is matrix  # no form in a recipe, so not checked either
    assert AllOf(["budget", {"kind": "budget"}]) == AllOf((Budget(), Budget()))
    assert Momentum(inner="plain") == Momentum()


# --- words ---
def test_the_words_are_the_title_with_what_differs_from_the_defaults():
    assert (p.words(Plain()), p.words(Momentum())) == ("Plain SGD", "toy momentum")
    assert p.words(Momentum(0.5, nesterov=False, inner=Momentum(steps=2))) == (
        "toy momentum (beta 0.5, nesterov False, inner toy momentum (steps 2))"
    )
    assert p.words(Budget(1 / 4, rounds=2)) == "matchings with a budget of 0.25 (rounds 2)"
    assert p.words(AllOf((Budget(), Weighted(halves)))) == (
        "all of: matchings with a budget of 0.5; weights from half of everything"
    )
    assert p.words(bound(scaled, {"by": 3.0})) == "scaled weights (by 3.0)"


# --- declaring ---
def test_a_declaration_that_could_not_work_is_refused_where_it_is_written():
    with pytest.raises(TypeError, match="rename the argument 'kind'"):

        @p.part("bad", "policy", title="bad")
        def bad(kind: int):
            pass

    refused(TypeError, "family = None; name one of algorithm, ", p.part("bad", title="bad"), lambda: None)


def test_a_type_that_is_imported_for_type_checkers_only_is_named():
    @p.part("hidden", "policy", title="hidden")
    def hidden(weights: "Fraction"):
        pass

    with pytest.raises(TypeError, match=r"hidden: name 'Fraction' is not defined; .* outside of TYPE_CHECKING"):
        _ = p.declaration(hidden).options


# --- parts from outside ---
def test_a_part_of_another_package_is_named_by_its_module():
    mine = p.build("policy", {"kind": "toys.parts:ToyPolicy", "strength": 2}, "policy")
    assert (mine.strength, p.words(mine)) == (2, "lazy weights every 2 mixings")
    undeclared = p.build("policy", {"kind": "toys.parts:Undeclared", "share": 0.25})
    assert (undeclared.share, p.words(undeclared)) == (0.25, "Undeclared (share 0.25)")


def test_entry_points_give_parts_of_other_packages_a_name(monkeypatch):
    named = ("policy.mine", "policy.budget")  # the second name is taken
    points = [metadata.EntryPoint(name, "toys.parts:ToyPolicy", "mixwise.parts") for name in named]
    monkeypatch.setattr(p.registry.metadata, "entry_points", lambda group: points if group == "mixwise.parts" else [])
    assert p.names("policy") == ["budget", "all-of", "weighted", "mine", "halves", "scaled"]
    assert p.build("policy", {"kind": "mine", "strength": 2}).strength == 2
    assert p.build("policy", "budget") == Budget()
    refused(p.OptionError, r"unknown policy 'mien'; did you mean mine\?", p.build, "policy", "mien")


def test_looking_up_a_part_imports_its_module_and_declaring_one_does_not_import_pydantic():
    declares = "import sys, mixwise.parts as p; p.part('a', 'policy', title='a')(lambda: 0)"
    subprocess.run([sys.executable, "-c", f"{declares}; assert 'pydantic' not in sys.modules"], check=True)
    assert p.lookup("algorithm", "plain").target is Plain
