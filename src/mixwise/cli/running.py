"""Commands that train: `run` and `sweep`, alone or as one of several processes under torchrun."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mixwise.completion import offer_overrides, offer_recipes
from mixwise.errors import ConfigError, MixwiseError, TrainingError
from mixwise.experiments import load_recipe, plan_experiment
from mixwise.terminal import err, notes_shown, out, progress_line, run_with_progress, summary_table

if TYPE_CHECKING:
    from mixwise.experiments.runner import Progress
    from mixwise.network.world import World

_RECIPE_HELP = "A recipe's name (see: mixwise recipes), or a YAML file."
_TIMEOUT_HELP = "Under torchrun: seconds to wait for another process at most."


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

    With the nodes divided over processes: mixwise launch --nproc-per-node 4 -- run digits
    """
    with _one_speaks(timeout) as world:
        _run(recipe, _changes(overrides, seeds), folder, resume, world)


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
        err.print(hint)
        raise typer.Exit(130) from None
    except TrainingError as error:
        raise TrainingError(f"{error}; the records so far: {folder}" if folder.exists() else str(error)) from None
    if world.rank > 0:
        return
    out.print(f"{experiment.recipe.name}: {experiment.recipe.description}")
    out.print(summary_table(summary))
    out.print(f"{summary.caption}.", style="dim")
    out.print(f"\nTable, figures and records: {folder}{'' if str(folder).endswith('/') else '/'}")
    out.print(f"To look at: {folder / 'report.html'}")


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
    from mixwise.experiments.sweep import sweep as run_sweep

    with _one_speaks(timeout) as world:
        found = load_recipe(recipe)
        folder = folder or _new_folder(f"{found.name}-sweep", world)

        def on_progress(progress: Progress) -> None:
            if world.rank == 0 and progress.step + 1 == progress.steps:
                err.print(progress_line(progress))

        result = run_sweep(found, _changes(overrides, seeds), folder, on_progress, world)
    if world.rank > 0:
        return
    for variant, point in result.chosen.items():
        out.print(f"{variant}: {point}")
    out.print(summary_table(result.summary))
    out.print(f"On the test set. Table, runs and chosen.yaml: {folder}")


def _changes(overrides: list[str] | None, seeds: str | None) -> list[str]:
    """What the command line changes of a recipe."""
    return [*(overrides or []), *([f"seeds={seeds}"] if seeds is not None else [])]


@contextmanager
def _one_speaks(timeout: float) -> Iterator[World]:
    """The processes that this one belongs to; if they end with an error, the first one to meet it says so."""
    from mixwise.network.processes import world_of_this_process  # with it torch, which completion does not need

    with world_of_this_process(timeout) as world, notes_shown(world.rank == 0):
        try:
            yield world
        except MixwiseError:
            if world.first_to_fail():
                raise
            time.sleep(1)  # torchrun ends the one that speaks as soon as this one has ended
            raise typer.Exit(2) from None


def _new_folder(name: str, world: World) -> Path:
    """runs/RECIPE/TIME: the time at which the processes were first launched, also after a restart."""
    note = f"folder of {name}"

    def choose() -> str:
        new = Path("runs") / name / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        chosen = world.recall(note) or str(new)
        world.note(note, chosen)
        return chosen

    return Path(world.decide(choose))
