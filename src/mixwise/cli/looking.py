"""Commands for run folders, finished or not: pages and figures to look at, models to take out."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from mixwise.experiments.export import export_model
from mixwise.report.figures import FORMATS, save_paper_figures
from mixwise.report.page import save_page
from mixwise.report.watch import WatchServer
from mixwise.terminal import err, out


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
            err.print(f"{folder.path}: {problem}")
    out.print(f"report: {file}")


def watch(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to serve; by default a port that is free.")] = 0,
) -> None:
    """The same page while the runs go on, served to this machine only; Ctrl-C ends it.

    Example: mixwise watch runs/digits/… --port 8000
    """
    with WatchServer(folders, port) as server:
        out.print(f"watch at {server.url}, end with Ctrl-C")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


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
        out.print(str(path))


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    variant: Annotated[str, typer.Option(help="Which variant of the run.")],
    model: Annotated[str, typer.Option(help="average, or node:3.")] = "average",
    seed: Annotated[int | None, typer.Option(help="Which seed; not needed if there is only one.")] = None,
    file: Annotated[Path, typer.Option("--out", help="The file, or for models of Hugging Face a folder.")] = Path(
        "model.safetensors"
    ),
) -> None:
    """Take a trained model out of a run: a plain safetensors state_dict.

    Example: mixwise export runs/digits/… --variant d2 --seed 0 --model average --out model.safetensors
    """
    state = export_model(folder, variant, model, file, seed)
    out.print(f"{len(state)} tensors, {sum(t.numel() for t in state.values())} numbers: {file}")
