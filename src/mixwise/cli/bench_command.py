"""`mixwise bench`: mixwise compared with its alternatives, on the user's own machine."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from mixwise.errors import ConfigError, unknown
from mixwise.terminal import columns, out


def bench(
    suites: Annotated[
        list[str] | None, typer.Argument(help="Suites, or all; by default those that take a few minutes.")
    ] = None,
    file: Annotated[Path, typer.Option("--out", help="Where to write all samples, as JSON.")] = Path("runs/bench.json"),
    listed: Annotated[bool, typer.Option("--list", help="List the suites and exit.")] = False,
) -> None:
    """Compare mixwise with its alternatives on this machine.

    All contestants take turns on the same inputs and threads. Shows the median and the middle half of the rounds, and
    the ratio to mixwise. pip install "mixwise[bench]" adds the other
    packages; those that are not installed are left out.

    Example: mixwise bench gme training
    """
    package = _benchmarks()
    if listed:
        out.print(columns(("suite", "compared with"), list(package.SUITES.items())))
        out.print(f"\nBy default: {', '.join(package.SHORT)}")
        return
    for name in suites or ():
        if name != "all" and name not in package.SUITES:
            raise ConfigError(unknown("suite", name, ["all", *package.SUITES]))
    importlib.import_module(f"{package.__name__}.run").run(suites or (), file, out.print)


def _benchmarks() -> ModuleType:
    """Return the benchmarks inside of an installed mixwise, or the folder of the checkout."""
    if importlib.util.find_spec("mixwise.benchmarks") is not None:
        return importlib.import_module("mixwise.benchmarks")
    checkout = Path(__file__).parents[3]
    if not (checkout / "benchmarks" / "run.py").is_file():
        raise ConfigError("this installation has no benchmarks; install mixwise from a wheel or from a checkout")
    sys.path.insert(0, str(checkout))
    return importlib.import_module("benchmarks")
