"""`mixwise doctor` and `bench`: checks of the installation and of the network, and measurements on this machine."""

from __future__ import annotations

import importlib
import importlib.util
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from mixwise.cli.run_command import launch, shared_world
from mixwise.cli.weights_command import ModelSize, plan
from mixwise.errors import ConfigError, unknown
from mixwise.terminal import columns, fail, out

if TYPE_CHECKING:
    from mixwise.graphs import Graph
    from mixwise.network import Link


def doctor(
    network: Annotated[bool, typer.Option("--network", help="Measure the links between processes.")] = False,
    processes: Annotated[int | None, typer.Option("--nproc-per-node", help="Start this many processes here.")] = None,
    spec: Annotated[
        str | None, typer.Option("--graph", help="The links to measure; by default ring:PROCESSES.")
    ] = None,
    model_size: ModelSize = 1_000_000,
) -> None:
    """Check your installation, or the network between processes.

    Shows versions, threads, back ends and data sets, runs a self-test of a few seconds, and says how to repair what is
    broken. With --network: latency and bandwidth along the edges of a graph whose nodes are the processes, and what
    mixwise plan expects of them.

    Example: mixwise doctor

    On several machines: mixwise launch --nproc-per-node 4 -- doctor --network
    """
    if not network:
        _check_installation()
    elif processes is not None:
        graph_of_processes(spec, processes)  # one error, not one per process
        command = ["doctor", "--network", f"--model-size={model_size}"]
        launch([*command, f"--graph={spec}"] if spec else command, processes)
    else:
        _measure_network(spec, model_size)


def _check_installation() -> None:
    from mixwise.doctor import findings

    broken, topic = 0, None
    for finding in findings():
        mark = {None: "", True: "ok: ", False: "FAILED: "}[finding.ok]
        out.print(f"{'' if finding.topic == topic else finding.topic:<14}{mark}{finding.text}")
        topic = finding.topic
        if finding.ok is False:
            broken += 1
            out.print(f"{'':<14}remedy: {finding.remedy}")
    if broken:
        raise typer.Exit(fail(f"{broken} {'check' if broken == 1 else 'checks'} failed", 1))
    out.print("All checks passed.")


def _measure_network(spec: str | None, model_size: int) -> None:
    from mixwise.network.links import measured_links

    with shared_world(60.0) as world:
        graph = graph_of_processes(spec, world.size)
        links = measured_links(world.network(graph))
    if world.rank == 0:
        show_links(links, spec or f"ring:{graph.n}", model_size)


def graph_of_processes(spec: str | None, size: int) -> Graph:
    """Return the graph whose links are measured, a ring by default, if its nodes are the processes."""
    from mixwise.graphs import parse

    if size < 2:
        raise ConfigError(
            "--network measures links between processes, and there is one; start some here with --nproc-per-node 4, "
            "or on one or more machines with mixwise launch --nproc-per-node 4 -- doctor --network"
        )
    graph = parse(spec or f"ring:{size}", 0)
    graph.require_undirected("doctor --network")
    if graph.n != size:
        raise ConfigError(f"--graph {spec} has {graph.n} nodes, but there are {size} processes; one per node")
    return graph


def show_links(links: Mapping[tuple[int, int], Link], spec: str, model_size: int) -> None:
    """Print the links, the slowest of them, and the forecast of `mixwise plan` for it."""
    from mixwise.network import Link

    message = 4 * model_size
    rows = [(f"{i} – {j}", *_figures(link), f"{link.seconds(message):.3g}") for (i, j), link in links.items()]
    out.print(columns(("ranks", "latency/ms", "Mbit/s", f"seconds for {message / 1e6:.3g} MB"), rows))
    (i, j), slowest = max(links.items(), key=lambda item: item[1].seconds(message))
    latency, bandwidth = _figures(slowest)
    usual = Link(median(link.latency for link in links.values()), median(link.bandwidth for link in links.values()))
    out.print("median: {} ms, {} Mbit/s".format(*_figures(usual)))
    out.print(f"slowest link: ranks {i} and {j}, {latency} ms, {bandwidth} Mbit/s; a round waits for it:\n")
    words = [spec, f"--latency={latency}", f"--bandwidth={bandwidth}", f"--model-size={model_size}"]
    out.print(f"mixwise plan {shlex.join(words)}")
    plan(spec, model_size, float(latency), float(bandwidth))


def _figures(link: Link) -> tuple[str, str]:
    """Milliseconds and Mbit/s, to three digits."""
    return f"{link.latency * 1e3:.3g}", f"{float(f'{link.bandwidth * 8e-6:.3g}'):g}"


# --- benchmarks ---
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
