"""Shell completion, and the examples in the help texts."""

import re
import shlex
import sys

import pytest
import typer

from mixwise import cli
from mixwise.experiments import load_recipe, recipe_names

COMMANDS = typer.main.get_command(cli.app).commands


@pytest.fixture
def offered(monkeypatch, capfd):
    """The words that bash is offered for the last one of a line."""

    def complete(line):
        monkeypatch.setenv("_MIXWISE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        monkeypatch.setattr(sys, "argv", ["mixwise"])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 0
        return capfd.readouterr().out.split()

    return complete


def test_commands_and_recipes(offered):
    assert set(offered("mixwise ")) == set(COMMANDS)
    assert offered("mixwise run ") == recipe_names()
    assert offered("mixwise sweep cifar10-") == ["cifar10-small"]


def test_keys_variants_graphs_and_schemes(offered):
    assert offered("mixwise run digits ste") == ["steps="]
    assert set(offered("mixwise run quadratics variants=")) == {
        f"variants={name}" for name in load_recipe("quadratics").variants
    }
    assert offered("mixwise run no-such-recipe variants=") == ["variants="]
    assert "torus:" in offered("mixwise graph t")
    assert offered("mixwise weights ring:8 --scheme optimal") == ["optimal-gap"]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_an_example_that_is_allowed(name):
    lines = re.findall(r"Example: (mixwise .*)", COMMANDS[name].help)
    assert lines, f"mixwise {name} --help has no example"
    for line in lines:
        words = shlex.split(line)
        assert words[1] == name
        COMMANDS[name].make_context(name, words[2:])  # raises if a word or an option is not allowed
