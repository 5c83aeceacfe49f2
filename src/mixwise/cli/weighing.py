"""Commands for graphs and their mixing weights, without any training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from mixwise.completion import offer_graphs, offer_schemes
from mixwise.errors import ConfigError, MixwiseError
from mixwise.experiments.build_policy import SCHEMES
from mixwise.experiments.strict import unknown
from mixwise.graphs import SPECS, Graph, parse
from mixwise.graphs.drawing import save_picture, terminal_picture
from mixwise.mixing import (
    MixingMatrix,
    consensus_factor,
    gradient_mixing_error,
    gram_matrix,
    heterogeneity,
    minimize_gme,
    spectral_gap,
)
from mixwise.terminal import out

_SPEC_HELP = "A graph: " + ", ".join(SPECS.values())


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
    out.print(f"{spec}: {g.n} nodes, {len(g.edges)} {'arcs' if g.directed else 'edges'}")
    out.print(f"degrees: {low if low == high else f'{low} to {high}, mean {np.mean(g.degrees):.3g}'}")
    if g.is_connected:
        out.print(f"diameter: {g.diameter}")
    else:
        sizes = sorted((len(component) for component in g.components), reverse=True)
        listed = ", ".join(map(str, sizes[:8])) + (", …" if len(sizes) > 8 else "")
        out.print(f"not connected: {len(sizes)} components of {listed} nodes")
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
        out.print(terminal_picture(g))
    if picture is not None:
        out.print(f"picture: {picture}")


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
            out.print(str(W.to_dense()))
    out.print(f"messages per step: {W.messages}")
    out.print(f"consensus factor p: {consensus_factor(W):.6f}")
    out.print(f"spectral gap: {spectral_gap(W):.6f}")
    if G is not None:
        error, total = gradient_mixing_error(G, W), heterogeneity(G) * g.n
        share = f", {error / total:.2%} of the disagreement before mixing" if total > 0 else ""
        out.print(f"gradient mixing error: {error:.6g}{share}")
    if file is not None:
        out.print(f"weights: {file}")


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
