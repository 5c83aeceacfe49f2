"""One string, one graph; and an error that says what could have been written."""

import pytest

from builders import cases, refused
from mixwise import graphs
from mixwise.errors import GraphError
from mixwise.graphs import SPECS, parse
from mixwise.graphs.spec import sized

EXAMPLES = {
    "ring:16": graphs.ring(16),
    "chain:8": graphs.chain(8),
    "torus:4x4": graphs.torus(4, 4),
    "grid:3x5": graphs.grid(3, 5),
    "star:9": graphs.star(9),
    "complete:8": graphs.complete(8),
    "hypercube:4": graphs.hypercube(4),
    "exponential:16": graphs.exponential(16),
    "directed-ring:5": graphs.directed_ring(5),
    "directed-exponential:12": graphs.directed_exponential(12),
    "random-connected:16": graphs.random_connected(16, seed=7),
    "random-connected:16,keep=0.3": graphs.random_connected(16, keep=0.3, seed=7),
    "random-regular:16,degree=4": graphs.random_regular(16, 4, seed=7),
    "erdos-renyi:50,probability=0.1": graphs.erdos_renyi(50, 0.1, seed=7),
    "random-geometric:50,radius=0.3": graphs.random_geometric(50, 0.3, seed=7),
    "small-world:20,neighbors=4,rewire=0.1": graphs.small_world(20, 4, 0.1, seed=7),
    "social": graphs.social_network(),
}


@pytest.mark.parametrize("spec", EXAMPLES)
def test_a_spec_is_the_call_it_stands_for(spec):
    assert (parse(spec, seed=7), parse(f"  {spec} ", seed=7)) == (EXAMPLES[spec], EXAMPLES[spec])


def test_every_family_has_an_example_and_a_form_derived_from_its_signature():
    assert {spec.partition(":")[0] for spec in EXAMPLES} | {"file"} == set(SPECS)
    assert all(form == name or form.startswith(f"{name}:") for name, form in SPECS.items())
    assert SPECS["torus"] == "torus:ROWSxCOLS"
    assert SPECS["random-connected"] == "random-connected:N[,keep=KEEP][,seed=SEED]"
    assert SPECS["erdos-renyi"] == "erdos-renyi:N,probability=PROBABILITY[,seed=SEED]"


@pytest.mark.parametrize("spec", [spec for spec in EXAMPLES if "seed" in SPECS[spec.partition(":")[0]]])
def test_a_seed_in_the_spec_wins(spec):
    assert parse(f"{spec},seed=7", seed=1) == EXAMPLES[spec]
    assert parse(spec, seed=1) != EXAMPLES[spec]


def test_options_come_in_any_order():
    assert parse("small-world:20,rewire=0.1, neighbors=4") == parse("small-world:20,neighbors=4,rewire=0.1")


def test_specs_cannot_be_changed():
    with pytest.raises(TypeError):
        SPECS["mine"] = "mine:N"


def test_a_file(tmp_path):
    path = tmp_path / "three, four.csv"  # a path is taken as it is, commas and all
    path.write_text("0,1\n1,2\n")
    assert parse(f"file:{path}") == graphs.chain(3)


def test_an_unknown_family_lists_the_forms():
    with pytest.raises(GraphError, match="unknown graph 'rong:3'") as caught:
        parse("rong:3")
    assert all(form in str(caught.value) for form in SPECS.values())


@cases(
    "spec, complaint",
    ("", "unknown graph ''"),
    ("social-network", "did you mean social?"),
    ("ring", "expected N after the name, got ''"),
    ("ring:4x4", "expected N after the name, got '4x4'"),
    ("ring:abc", "N = 'abc' is not a whole number"),
    ("ring:0", "n = 0; give a whole number of at least 1"),
    ("torus:4", "expected ROWSxCOLS after the name, got '4'"),
    ("social:3", "expected nothing after the name, got '3'"),
    ("file:", "expected PATH after the name, got ''"),
    ("ring:4,seed=1", "unknown option 'seed=1'; the options are none"),
    ("random-connected:8,kep=0.5", "unknown option 'kep=0.5'; the options are keep, seed"),
    ("random-connected:8,", "unknown option ''; the options are keep, seed"),
    ("random-connected:8,keep", "keep has no value; write keep=…"),
    ("random-connected:8,keep=half", "keep = 'half' is not a number"),
    ("random-connected:8,keep=0.5,keep=0.6", "keep is given twice"),
    ("random-connected:8,keep=0.1", "keep at least 0.25"),
    ("random-connected:8,seed=1.5", "seed = '1.5' is not a whole number"),
    ("erdos-renyi:8", "probability is missing; add probability=…"),
)
def test_a_broken_spec_says_which_part_and_shows_the_form(spec, complaint):
    with pytest.raises(GraphError) as caught:
        parse(spec)
    message = str(caught.value)
    assert complaint in message
    assert repr(spec) in message
    assert SPECS.get(spec.partition(":")[0], "") in message
    assert "\n" not in message


def test_a_missing_file_is_one_line_with_its_path():
    refused(GraphError, r"^nowhere\.gml: cannot be read \(No such file", parse, "file:nowhere.gml")


@cases(
    "spec, nodes, expected",
    ("torus:4x4", 100_000, "torus:250x400"),
    ("grid", 12, "grid:3x4"),
    ("hypercube:3", 64, "hypercube:6"),
    ("random-regular,degree=6", 1000, "random-regular:1000,degree=6"),
    ("small-world:16,neighbors=2", 30, "small-world:30,neighbors=2"),
)
def test_a_family_at_another_size(spec, nodes, expected):
    assert sized(spec, nodes) == expected
    assert nodes > 10_000 or parse(expected).n == nodes


@cases(
    "spec, nodes, complaint",
    ("torus", 10_007, "nodes = 10007 is 1 × 10007, too thin for a torus; use nodes=10000"),
    ("hypercube", 12, "use a power of two"),
    ("social", 12, "it has one size; leave nodes out"),
    ("file:net.csv", 12, "only families come in any size; leave nodes out"),
    ("rnig:5", 12, "only families come in any size"),
)
def test_a_size_that_a_graph_cannot_have(spec, nodes, complaint):
    refused(GraphError, complaint, sized, spec, nodes)
