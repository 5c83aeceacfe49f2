"""The command line; with its terminal, the only place that prints."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer
from rich.table import Table

from mixwise import __version__
from mixwise.algorithms.catalog import CATALOG
from mixwise.completion import offer_graphs, offer_overrides, offer_recipes, offer_schemes
from mixwise.errors import ConfigError, MixwiseError, TrainingError
from mixwise.experiments import load_recipe, plan_experiment, recipe_names
from mixwise.experiments.build_policy import SCHEMES
from mixwise.experiments.export import export_model
from mixwise.experiments.runner import Progress
from mixwise.experiments.strict import unknown
from mixwise.experiments.sweep import sweep as run_sweep
from mixwise.graphs import SPECS, Graph, parse
from mixwise.launch import (
    Machines,
    check_options,
    gloo_interface,
    launch_line,
    parse_master,
    python_line,
    supervise,
    torchrun_line,
    worker_command,
)
from mixwise.mixing import (
    MixingMatrix,
    consensus_factor,
    gradient_mixing_error,
    gram_matrix,
    heterogeneity,
    minimize_gme,
    spectral_gap,
)
from mixwise.network.processes import world_of_this_process
from mixwise.network.world import World
from mixwise.report.graph_picture import save_picture, terminal_picture
from mixwise.report.page import save_page
from mixwise.report.paper_figures import FORMATS, save_paper_figures
from mixwise.report.watch import WatchServer
from mixwise.terminal import err, out, progress_line, run_with_progress, summary_table

app = typer.Typer(add_completion=True, rich_markup_mode=None, pretty_exceptions_enable=False)

# What typer raises for a wrong option or argument: click's UsageError, or that of the click inside newer typers.
UsageError: type[Exception] = typer.BadParameter.mro()[1]

_TIMEOUT_HELP = "Under torchrun: seconds to wait for another process at most."
_RECIPE_HELP = "A recipe's name (see: mixwise recipes), or a YAML file."
_SPEC_HELP = "A graph: " + ", ".join(SPECS.values())


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"mixwise {__version__}", highlight=False)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and stop.")
    ] = False,
) -> None:
    """mixwise: decentralized learning with gossip weights that fit the data."""
    if context.invoked_subcommand is None:
        out.print(context.get_help(), highlight=False, markup=False)


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(help=_RECIPE_HELP, autocompletion=offer_recipes)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="key=value, such as steps=50, variants=ha-dsgd,dsgd-metropolis, ha-dsgd.policy.period=10.",
            autocompletion=offer_overrides,
        ),
    ] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Where to write; by default runs/RECIPE/TIME.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, such as 0,1,2 or 0-9.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the interrupted run in the folder of --out.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=1.0, help=_TIMEOUT_HELP)] = 300.0,
) -> None:
    """Run a recipe: all variants, all seeds; a table, figures and records in a folder.

    Example: mixwise run quadratics steps=100 --seeds 0-4 --out my-run
    With the nodes divided over processes: torchrun --nproc-per-node 4 -m mixwise run digits
    """
    changes = [*(overrides or []), *([f"seeds={seeds}"] if seeds is not None else [])]
    with _one_speaks(timeout) as world:
        _run(recipe, changes, folder, resume, world)


@contextmanager
def _one_speaks(timeout: float) -> Iterator[World]:
    """The processes that this one belongs to; if they end with an error, the first one to meet it says so."""
    with world_of_this_process(timeout) as world:
        try:
            yield world
        except MixwiseError:
            if world.first_to_fail():
                raise
            time.sleep(1)  # torchrun ends the one that speaks as soon as this one has ended
            raise typer.Exit(2) from None


def _run(recipe: str, changes: list[str], folder: Path | None, resume: bool, world: World) -> None:
    """The nodes of this process, with those of the others; process 0 prints."""
    experiment = plan_experiment(load_recipe(recipe), changes)
    experiment = replace(experiment, command=shlex.join(["mixwise", "run", recipe, *changes]))
    if resume and folder is None:
        raise ConfigError("--resume goes on in a folder; name it with --out")
    folder = folder or _new_folder(experiment.recipe.name, world)
    try:
        summary = run_with_progress(experiment, folder, resume, world)
    except KeyboardInterrupt:
        if world.rank > 0:
            raise typer.Exit(130) from None
        hint = f"stopped; go on with: mixwise run {folder}/config.yaml --out {folder} --resume"
        err.print(hint, highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    except TrainingError as error:
        raise TrainingError(f"{error}; the records so far: {folder}" if folder.exists() else str(error)) from None
    if world.rank > 0:
        return
    out.print(f"{experiment.recipe.name}: {experiment.recipe.description}", highlight=False)
    out.print(summary_table(summary))
    out.print(f"[dim]{summary.caption}.[/dim]", highlight=False)
    out.print(f"\nTable, figures and records: {folder}{'' if str(folder).endswith('/') else '/'}", highlight=False)
    out.print(f"To look at: {folder / 'report.html'}", highlight=False, soft_wrap=True)


def _new_folder(name: str, world: World) -> Path:
    """runs/RECIPE/TIME: the time at which the processes were first launched, also after a restart."""
    note = f"folder of {name}"

    def choose() -> str:
        new = Path("runs") / name / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        chosen = world.recall(note) or str(new)
        world.note(note, chosen)
        return chosen

    return Path(world.decide(choose))


@app.command()
def launch(
    command: Annotated[list[str], typer.Argument(help="After --: run RECIPE …, or a script of yours.")],
    processes: Annotated[int, typer.Option("--nproc-per-node", help="Processes on each machine.")],
    on_loss: Annotated[
        Literal["stop", "continue"],
        typer.Option(help="When a process is lost: stop all of them (torchrun), or go on without it."),
    ] = "stop",
    count: Annotated[str, typer.Option("--machines", help="How many; 1:3, at least 1 and at most 3, with stop.")] = "1",
    here: Annotated[int, typer.Option("--machine", help="The number of this machine, from 0.")] = 0,
    master: Annotated[str | None, typer.Option(help="ADDRESS:PORT of machine 0, as the others reach it.")] = None,
    max_restarts: Annotated[int, typer.Option(help="With stop: how often to start anew from the checkpoint.")] = 0,
    grace: Annotated[
        float, typer.Option(help="With continue: seconds that a process may be silent when one is lost.")
    ] = 30.0,
    show: Annotated[
        bool, typer.Option("--print", help="Print the command lines of all machines, run nothing.")
    ] = False,
) -> None:
    """Start a recipe or a script in several processes, on one or several machines.

    Example: mixwise launch --nproc-per-node 4 --on-loss continue -- run digits
    """
    machines = Machines(processes, count, here, parse_master(master))
    worker = worker_command(command)
    stops = on_loss == "stop"
    check_options(machines, stops, max_restarts, grace)
    if show:
        for machine in range(machines.most):
            there = replace(machines, here=machine)
            line = torchrun_line(there, worker, max_restarts) if stops else launch_line(there, grace, command)
            out.print(shlex.join(line), highlight=False, markup=False, soft_wrap=True)
    elif stops:
        sys.stdout.flush()
        line = python_line(torchrun_line(machines, worker, max_restarts))
        os.execve(sys.executable, line, gloo_interface(machines.master) | os.environ)
    else:
        raise typer.Exit(supervise(machines, worker, grace, _say))


def _say(message: str) -> None:
    err.print(f"mixwise launch: {message}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def sweep(
    recipe: Annotated[str, typer.Argument(help=_RECIPE_HELP, autocompletion=offer_recipes)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="key=value; several values make a grid, such as lr=0.03,0.1.", autocompletion=offer_overrides
        ),
    ] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="By default runs/RECIPE-sweep/TIME.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, such as 0,1,2 or 0-9.")] = None,
    timeout: Annotated[float, typer.Option(min=1.0, help=_TIMEOUT_HELP)] = 300.0,
) -> None:
    """Choose values on the validation split, variant by variant, and test the winners once.

    Example: mixwise sweep cifar10-small topology=ring lr=0.03,0.1 --seeds 0
    """
    changes = [*(overrides or []), *([f"seeds={seeds}"] if seeds is not None else [])]
    with _one_speaks(timeout) as world:
        found = load_recipe(recipe)
        folder = folder or _new_folder(f"{found.name}-sweep", world)

        def on_progress(progress: Progress) -> None:
            if world.rank == 0 and progress.step + 1 == progress.steps:
                err.print(progress_line(progress), highlight=False)

        result = run_sweep(found, changes, folder, on_progress, world)
    if world.rank > 0:
        return
    for variant, point in result.chosen.items():
        out.print(f"{variant}: {point}", highlight=False)
    out.print(summary_table(result.summary))
    out.print(f"On the test set. Table, runs and chosen.yaml: {folder}", highlight=False)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    variant: Annotated[str, typer.Option(help="Which variant of the run.")],
    model: Annotated[str, typer.Option(help="average, or node:3.")] = "average",
    seed: Annotated[int | None, typer.Option(help="Which seed; not needed if there is only one.")] = None,
    file: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path("model.safetensors"),
) -> None:
    """Take a trained model out of a run: a plain safetensors state_dict.

    Example: mixwise export runs/digits/… --variant d2 --seed 0 --model average --out model.safetensors
    """
    state = export_model(folder, variant, model, file, seed)
    out.print(f"{len(state)} tensors, {sum(t.numel() for t in state.values())} numbers: {file}", highlight=False)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders, finished or not.")],
    file: Annotated[
        Path | None, typer.Option("--out", help="The page to write; by default report.html in the (first) folder.")
    ] = None,
) -> None:
    """One page about one or several runs, to look at in a browser; it needs no network.

    Example: mixwise report runs/digits/… runs/quadratics/… --out report.html
    """
    file = file or folders[0] / "report.html"
    for folder in save_page(folders, file):
        for problem in folder.problems:
            err.print(f"{folder.path}: {problem}", highlight=False, markup=False, soft_wrap=True)
    out.print(f"report: {file}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def watch(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to serve; by default a port that is free.")] = 0,
) -> None:
    """The same page while the runs go on, served to this machine only; Ctrl-C ends it.

    Example: mixwise watch runs/digits/… --port 8000
    """
    with WatchServer(folders, port) as server:
        out.print(f"watch at {server.url}, end with Ctrl-C", highlight=False, markup=False, soft_wrap=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


@app.command()
def figures(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    formats: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}, or several of them.")] = "pdf",
    width: Annotated[Literal["column", "text"], typer.Option(help="3.25 or 6.75 inches.")] = "column",
    target: Annotated[Path | None, typer.Option("--out", help="By default RUN/figures.")] = None,
) -> None:
    """Figures for a paper: curves, the graph with its weights, the partition.

    Example: mixwise figures runs/digits/… --format pdf,png --width column
    """
    for path in save_paper_figures(folder, [name.strip() for name in formats.split(",")], width, target):
        out.print(str(path), highlight=False, markup=False, soft_wrap=True)


@app.command()
def recipes() -> None:
    """List the recipes that come with mixwise, and the algorithms that a recipe may name."""
    table = Table(box=None, pad_edge=False)
    for column in ("recipe", "what it shows", "variants", "seeds"):
        table.add_column(column)
    for name in recipe_names():
        recipe = load_recipe(name)
        listed = ", ".join(recipe.variants)
        if recipe.further:
            listed += f"; if named: {', '.join(recipe.further)}"
        table.add_row(name, recipe.description, listed, str(len(recipe.seeds)))
    out.print(table)
    table = Table(box=None, pad_edge=False)
    for column in ("algorithm", "step", "mixes", "rounds", "sends per node", "condition on W", "reference"):
        table.add_column(column)
    for entry in CATALOG:
        table.add_row(*map(str, entry))
    out.print()
    out.print(table)


@app.command()
def graph(
    spec: Annotated[str, typer.Argument(help=_SPEC_HELP, autocompletion=offer_graphs)],
    seed: Annotated[int, typer.Option(help="Seed of a random graph.")] = 0,
    picture: Annotated[Path | None, typer.Option("--out", help="Save a picture: .png, .svg or .pdf.")] = None,
) -> None:
    """Describe a graph: size, degrees, diameter, how fast each scheme mixes, and a picture.

    Example: mixwise graph torus:4x4
    """
    g = parse(spec, seed)
    if picture is not None:
        save_picture(g, picture)
    low, high = min(g.degrees), max(g.degrees)
    out.print(f"{spec}: {g.n} nodes, {len(g.edges)} {'arcs' if g.directed else 'edges'}", highlight=False)
    out.print(f"degrees: {low if low == high else f'{low} to {high}, mean {np.mean(g.degrees):.3g}'}", highlight=False)
    if g.is_connected:
        out.print(f"diameter: {g.diameter}", highlight=False)
    else:
        sizes = sorted((len(component) for component in g.components), reverse=True)
        listed = ", ".join(map(str, sizes[:8])) + (", …" if len(sizes) > 8 else "")
        out.print(f"not connected: {len(sizes)} components of {listed} nodes", highlight=False)
    table = Table(box=None, pad_edge=False)
    for column in ("scheme", "consensus factor p", "spectral gap"):
        table.add_column(column)
    for name, build in SCHEMES.items():
        try:
            W = build(g)
            table.add_row(name, f"{consensus_factor(W):.6f}", f"{spectral_gap(W):.6f}")
        except MixwiseError as error:
            table.add_row(name, f"– ({str(error).partition(';')[0]})", "–")
    out.print(table)
    if g.n <= 64:
        out.print(terminal_picture(g), highlight=False, markup=False)
    if picture is not None:
        out.print(f"picture: {picture}", highlight=False)


@app.command()
def weights(
    spec: Annotated[str, typer.Argument(help=_SPEC_HELP, autocompletion=offer_graphs)],
    scheme: Annotated[
        str,
        typer.Option(help=f"{', '.join(SCHEMES)}, or gme (needs --gradients).", autocompletion=offer_schemes),
    ],
    gradients: Annotated[Path | None, typer.Option(help="Gradients, one row per node, as a .npy file.")] = None,
    regularization: Annotated[float, typer.Option(help="λ of the gme scheme.")] = 0.0,
    symmetric: Annotated[bool, typer.Option("--symmetric", help="Symmetric weights from the gme scheme.")] = False,
    file: Annotated[
        Path | None, typer.Option("--out", help="Save W: .npy (n × n array) or .csv (i, j, weight).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of a random graph.")] = 0,
) -> None:
    """Compute mixing weights for a graph; with gradients, also how well they mix them.

    Example: mixwise weights ring:16 --scheme gme --gradients grads.npy --out W.npy
    """
    g = parse(spec, seed)
    if file is not None and file.suffix not in (".npy", ".csv"):
        raise ConfigError(f"--out {file}: W is saved as .npy (n × n array) or .csv (i, j, weight)")
    G = None if gradients is None else _gradients(gradients, g)
    if scheme == "gme":
        if G is None:
            raise ConfigError("--scheme gme fits the weights to gradients; give them with --gradients FILE.npy")
        W = minimize_gme(gram_matrix(G), g, regularization=regularization, symmetric=symmetric).W
    elif scheme in SCHEMES:
        W = SCHEMES[scheme](g)
    else:
        raise ConfigError(unknown("scheme", scheme, [*SCHEMES, "gme"]))
    if file is not None:
        _save_weights(W, file)
    if g.n <= 16:
        with np.printoptions(precision=3, suppress=True, linewidth=200):
            out.print(str(W.to_dense()), highlight=False, markup=False)
    out.print(f"messages per step: {W.messages}", highlight=False)
    out.print(f"consensus factor p: {consensus_factor(W):.6f}", highlight=False)
    out.print(f"spectral gap: {spectral_gap(W):.6f}", highlight=False)
    if G is not None:
        error, total = gradient_mixing_error(G, W), heterogeneity(G) * g.n
        share = f", {error / total:.2%} of the disagreement before mixing" if total > 0 else ""
        out.print(f"gradient mixing error: {error:.6g}{share}", highlight=False)
    if file is not None:
        out.print(f"weights: {file}", highlight=False)


@app.command()
def doctor() -> None:
    """Look at what is here and whether it works: versions, threads, back ends, data sets, a self-test of some seconds.

    Example: mixwise doctor
    """
    from mixwise.doctor import findings  # other commands start faster without it

    broken, topic = 0, None
    for finding in findings():
        mark = {None: "", True: "ok: ", False: "FAILED: "}[finding.ok]
        label = "" if finding.topic == topic else finding.topic
        topic = finding.topic
        out.print(f"{label:<14}{mark}{finding.text}", highlight=False, markup=False, soft_wrap=True)
        if finding.ok is False:
            broken += 1
            out.print(f"{'':<14}remedy: {finding.remedy}", highlight=False, markup=False, soft_wrap=True)
    if broken:
        raise typer.Exit(_fail(f"{broken} of the above {'is' if broken == 1 else 'are'} broken", 1))
    out.print("All is well.", highlight=False)


def main() -> None:
    """The entry point: a user's mistake is one line and exit code 2, never a traceback."""
    try:
        status = typer.main.get_command(app).main(prog_name="mixwise", standalone_mode=False)
    except MixwiseError as error:
        status = _fail(str(error))
    except UsageError as error:
        message = getattr(error, "format_message", error.__str__)().rstrip(".")
        command = getattr(getattr(error, "ctx", None), "command_path", "mixwise")
        status = _fail(f"{message}; {command} --help shows what is allowed")
    except (typer.Abort, KeyboardInterrupt):
        status = _fail("stopped", 130)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int = 2) -> int:
    err.print(f"error: {' '.join(message.split())}", highlight=False, markup=False, soft_wrap=True)
    return status


def _gradients(path: Path, g: Graph) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    try:
        G = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is no .npy array of numbers"
        raise ConfigError(f"--gradients {path} cannot be read: {reason}") from None
    if not isinstance(G, np.ndarray) or G.ndim != 2 or len(G) != g.n or G.dtype.kind not in "fiu":
        shape = getattr(G, "shape", "no single array")
        raise ConfigError(f"--gradients {path} holds {shape}; it must be one row of numbers per node, ({g.n}, d)")
    return G.astype(np.float64)


def _save_weights(W: MixingMatrix, path: Path) -> None:
    try:
        if path.suffix == ".npy":
            np.save(path, W.to_dense())
        else:
            pattern = W.graph.pattern
            entries = zip(pattern.rows.tolist(), pattern.cols.tolist(), W.weights.tolist(), strict=True)
            path.write_text("i,j,weight\n" + "".join(f"{i},{j},{w!r}\n" for i, j, w in entries), "utf-8")
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {error.strerror}") from None
