"""`make run` installs what a run needs; the other commands add what they need."""

import subprocess
from pathlib import Path

from builders import cases


def installed_by(goal, venv):
    """The packages that pip installs for a command in a fresh clone."""
    command = ["make", "--dry-run", f"VENV={venv}", goal]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    lines = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert all("-c constraints.txt" in line and "quiet" not in line for line in lines)
    return [line.split(" -e ")[1].strip("'") for line in lines]


@cases(
    "goal, extras",
    ("run", []),
    *((goal, [".[dev]"]) for goal in ("setup", "test", "test-benchmarks", "lint", "build")),
    ("docs", [".[docs]"]),
    ("bench", [".[bench]"]),
    ("test-trainers", [".[dev]", ".[trainers]"]),
)
def test_a_command_installs_what_it_needs_and_shows_progress(goal, extras, tmp_path):
    assert installed_by(goal, tmp_path / "venv") == [".", *extras]


def test_what_is_installed_already_is_not_installed_again(tmp_path):
    for stamp in (".ready", ".ready-dev"):
        (tmp_path / stamp).touch()
    assert installed_by("test", tmp_path) == []
    assert installed_by("docs", tmp_path) == [".[docs]"]


def test_the_checks_of_a_change_rehearse_every_benchmark():
    checks = (Path(__file__).parents[2] / ".ci" / "run").read_text("utf-8")
    assert "make test-benchmarks" in checks.splitlines()
