"""`mixwise run`, `sweep` and `launch`: train, alone, as one of several processes, or by starting them."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mixwise.cli.heap import keep_freed_memory
from mixwise.cli.recipes_command import offer_overrides, offer_recipes
from mixwise.errors import ConfigError, MixwiseError, TrainingError
from mixwise.terminal import err, notes_shown, out, print_results, progress_shown

if TYPE_CHECKING:
    from mixwise.network.world import World

_RECIPE_HELP = "The name of a recipe (see mixwise recipes) or a YAML file."
Recipe = Annotated[str, typer.Argument(help=_RECIPE_HELP, autocompletion=offer_recipes)]
Seeds = Annotated[str | None, typer.Option(help="Seeds, such as 0,1,2 or 0-9.")]
Timeout = Annotated[float, typer.Option(min=1.0, help="Under torchrun: seconds to wait for another process.")]
_KEYS_HELP = "key=value, such as steps=50, variants=dsgd,d2 or ha-dsgd.policy.period=10."
_GRID_HELP = "key=value; several values form a grid, such as lr=0.03,0.1."


def run(
    recipe: Recipe,
    overrides: Annotated[list[str] | None, typer.Argument(help=_KEYS_HELP, autocompletion=offer_overrides)] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="The run folder; by default runs/RECIPE/TIME.")] = None,
    seeds: Seeds = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the interrupted run in --out.")] = False,
    timeout: Timeout = 300.0,
) -> None:
    """Run a recipe: all its variants with all its seeds.

    Leaves a table, figures, records and a report in a folder.

    Example: mixwise run quadratics steps=100 --seeds 0-4 --out my-run

    In several processes: mixwise launch --nproc-per-node 4 -- run digits
    """
    from mixwise.experiments import load_recipe, plan_experiment, run_experiment

    keep_freed_memory()
    changes = _changes(overrides, seeds)
    with shared_world(timeout) as world:
        experiment = plan_experiment(load_recipe(recipe), changes)
        experiment = replace(experiment, command=shlex.join(["mixwise", "run", recipe, *changes]))
        folder = _run_folder(folder, resume, experiment.recipe.name, world)
        try:
            with progress_shown(world, len(experiment.recipe.seeds) * len(experiment.runs)) as on_progress:
                summary = run_experiment(experiment, folder, on_progress, resume, world)
        except KeyboardInterrupt:
            if world.rank == 0:
                err.print(f"stopped; resume with: mixwise run {folder}/config.yaml --out {folder} --resume")
            raise typer.Exit(130) from None
        except TrainingError as error:
            raise TrainingError(f"{error}; the records so far: {folder}" if folder.exists() else str(error)) from None
        if world.rank == 0:
            out.print(f"{experiment.recipe.name}: {experiment.recipe.description}")
            print_results(summary)
            out.print(f"\nTable, figures and records: {folder}{'' if str(folder).endswith('/') else '/'}")
            out.print(f"Report: {folder / 'report.html'}")
            if all(row.diverged and not any(row.cells) for row in summary.rows.values()):
                raise TrainingError("every run has diverged; lower the learning rate (lr)")


def sweep(
    recipe: Recipe,
    overrides: Annotated[list[str] | None, typer.Argument(help=_GRID_HELP, autocompletion=offer_overrides)] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="By default runs/RECIPE-sweep/TIME.")] = None,
    seeds: Seeds = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the interrupted sweep in --out.")] = False,
    timeout: Timeout = 300.0,
) -> None:
    """Tune a recipe on its validation split, then test once.

    Each variant gets the values of the grid that work best for it; only these are evaluated on the test set.

    Example: mixwise sweep cifar10-small topology=ring lr=0.03,0.1 --seeds 0
    """
    from mixwise.experiments import load_recipe
    from mixwise.experiments.sweep import sweep as run_sweep

    keep_freed_memory()
    with shared_world(timeout) as world:
        found = load_recipe(recipe)
        folder = _run_folder(folder, resume, f"{found.name}-sweep", world)
        with progress_shown(world) as on_progress:
            result = run_sweep(found, _changes(overrides, seeds), folder, on_progress, world, resume)
    if world.rank == 0:
        for variant, point in result.chosen.items():
            out.print(f"{variant}: {point}")
        print_results(result.summary)
        for note in result.notes:
            out.print(f"{note}\n")
        out.print(f"Results on the test set. Table, runs and chosen.yaml: {folder}")


def launch(
    command: Annotated[list[str], typer.Argument(help="After --: run RECIPE …, or your own script.")],
    processes: Annotated[int, typer.Option("--nproc-per-node", help="Processes on each machine.")],
    on_loss: Annotated[Literal["stop", "continue"], typer.Option(help="What to do when a process is lost.")] = "stop",
    count: Annotated[str, typer.Option("--machines", help="Number of machines; with stop, also a range: 1:3.")] = "1",
    here: Annotated[int, typer.Option("--machine", help="The number of this machine, from 0.")] = 0,
    master: Annotated[str | None, typer.Option(help="ADDRESS:PORT of machine 0, reachable from the others.")] = None,
    standby: Annotated[str | None, typer.Option(help="With continue: ADDRESS:PORT of machine 1, if 0 is lost.")] = None,
    max_restarts: Annotated[int, typer.Option(help="Of all processes; with continue, of lost ones.")] = 0,
    grace: Annotated[float, typer.Option(help="With continue: seconds until a silent process counts as lost.")] = 0.7,
    show: Annotated[bool, typer.Option("--print", help="Only print the command lines of all machines.")] = False,
) -> None:
    """Start a recipe or a script in several processes.

    The processes run on one or more machines. When one of them is lost, the others stop, as under torchrun, or
    continue without it; it joins them again when it is restarted.

    Example: mixwise launch --nproc-per-node 4 -- run digits
    """
    from mixwise.launch import command as start
    from mixwise.launch.supervisor import supervise

    machines = start.Machines(processes, count, here, start.parse_master(master), start.parse_master(standby))
    worker, stops = start.worker_command(command), on_loss == "stop"
    start.check_options(machines, worker, stops, max_restarts, grace)

    def line(here: start.Machines) -> list[str]:
        return (
            start.torchrun_line(here, worker, max_restarts)
            if stops
            else start.launch_line(here, grace, max_restarts, command)
        )

    if show:
        for machine in range(machines.most):
            out.print(shlex.join(line(replace(machines, here=machine))))
    elif stops:
        sys.stdout.flush()
        os.execv(sys.executable, start.python_line(line(machines)))
    else:
        say = partial(err.print, "mixwise launch:")
        raise typer.Exit(supervise(machines, worker, grace, max_restarts, say))


def _changes(overrides: list[str] | None, seeds: str | None) -> list[str]:
    """All overrides of the recipe."""
    return [*(overrides or []), *([f"seeds={seeds}"] if seeds is not None else [])]


@contextmanager
def shared_world(timeout: float) -> Iterator[World]:
    """The processes of this run; if they fail together, only the first one to fail prints the error."""
    from mixwise.network.world import world_of_this_process

    with world_of_this_process(timeout) as world, notes_shown(world.rank == 0):
        try:
            yield world
        except MixwiseError:
            if world.first_to_fail():
                raise
            time.sleep(1)  # torchrun ends the process that prints as soon as this one has ended
            raise typer.Exit(2) from None


def _run_folder(given: Path | None, resume: bool, name: str, world: World) -> Path:
    """The given folder, or runs/NAME/TIME with the time of the first launch; a restart uses the same folder."""
    if given is not None:
        return given
    if resume:
        raise ConfigError("--resume needs the folder of the interrupted run; name it with --out")
    note = f"folder of {name}"

    def choose() -> str:
        chosen = world.recall(note) or str(Path("runs") / name / datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))
        world.note(note, chosen)
        return chosen

    return Path(world.decide(choose))
