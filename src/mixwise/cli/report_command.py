"""`mixwise report`, `watch`, `figures` and `export`: pages, figures and models from run folders."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from mixwise.terminal import err, out

_MODEL = Path("model.safetensors")
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Folders = Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders, finished or not.")]


def report(
    folders: Folders,
    file: Annotated[Path | None, typer.Option("--out", help="By default report.html in the first folder.")] = None,
) -> None:
    """Write one page about one or several runs, for any browser.

    The page works offline.

    Example: mixwise report runs/digits/… runs/quadratics/… --out report.html
    """
    from mixwise.report.page import save_page

    file = file or folders[0] / "report.html"
    for folder in save_page(folders, file):
        for problem in folder.problems:
            err.print(f"{folder.path}: {problem}")
    out.print(f"report: {file}")


def watch(
    folders: Folders,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; by default a free one.")] = 0,
) -> None:
    """Serve the same page while runs are in progress.

    The page updates itself and is visible on this machine only; stop with Ctrl-C.

    Example: mixwise watch runs/digits/… --port 8000
    """
    from mixwise.report.watch import WatchServer

    with WatchServer(folders, port) as server:
        out.print(f"watch at {server.url}, stop with Ctrl-C")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def figures(
    folder: Folder,
    formats: Annotated[str, typer.Option("--format", help="pdf, png, svg, or several of them.")] = "pdf",
    width: Annotated[Literal["column", "text"], typer.Option(help="3.25 or 6.75 inches.")] = "column",
    target: Annotated[Path | None, typer.Option("--out", help="The folder to write; by default RUN/figures.")] = None,
) -> None:
    """Draw figures for a paper.

    Draws the curves, the graph with its weights, and the partition.

    Example: mixwise figures runs/digits/… --format pdf,png --width column
    """
    from mixwise.report.figures import save_paper_figures

    for path in save_paper_figures(folder, [name.strip() for name in formats.split(",")], width, target):
        out.print(str(path))


def export(
    folder: Folder,
    variant: Annotated[str, typer.Option(help="The variant whose model to export.")],
    model: Annotated[str, typer.Option(help="average, or one node's model: node:3.")] = "average",
    seed: Annotated[int | None, typer.Option(help="The seed; not needed if there is only one.")] = None,
    file: Annotated[Path, typer.Option("--out", help="The file; a folder for Hugging Face models.")] = _MODEL,
) -> None:
    """Export a trained model as a safetensors state_dict.

    Example: mixwise export runs/digits/… --variant d2 --seed 0 --model average --out model.safetensors
    """
    from mixwise.experiments.export import export_model

    state = export_model(folder, variant, model, file, seed)
    out.print(f"{len(state)} tensors, {sum(t.numel() for t in state.values())} numbers: {file}")
