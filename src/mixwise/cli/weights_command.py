"""`mixwise graph`, `weights` and `plan`: graphs, their mixing weights and the cost of policies, before any training."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mixwise.cli.recipes_command import offer_graphs, offer_schemes
from mixwise.errors import ConfigError, MixwiseError, unknown
from mixwise.parts import entries, kind, lookup
from mixwise.terminal import columns, err, out

if TYPE_CHECKING:
    from mixwise.graphs import Graph
    from mixwise.mixing import MixingMatrix

_SPEC_HELP = "A graph, such as ring:16, torus:4x4 or file:PATH (see mixwise recipes)."
_SCHEME_HELP = "A weighting scheme (see mixwise recipes), or gme, which fits the weights to --gradients."
_SCHEMES = [name for name in entries("scheme", outside=False) if name != "cliques"]  # which needs the cliques
Spec = Annotated[str, typer.Argument(help=_SPEC_HELP, autocompletion=offer_graphs)]
_MOST = 2_500  # nodes; for more, eigenvalues take minutes
Seed = Annotated[int, typer.Option(help="Seed of a random graph.")]
ModelSize = Annotated[int, typer.Option(help="Parameters of the model.")]


def graph(
    spec: Spec,
    seed: Seed = 0,
    picture: Annotated[Path | None, typer.Option("--out", help="Save a picture: .png, .svg or .pdf.")] = None,
) -> None:
    """Describe a graph, and how fast each weighting scheme mixes on it.

    Shows the size, degrees and diameter of the graph, and a picture of up to 64 nodes. Above 2,500 nodes, the diameter
    and the speed of mixing are left out.

    Example: mixwise graph torus:4x4
    """
    from mixwise.graphs import parse
    from mixwise.graphs.drawing import save_picture, terminal_picture
    from mixwise.mixing import consensus_factor, spectral_gap

    g = parse(spec, seed)
    if picture is not None:
        save_picture(g, picture)
        out.print(f"picture: {picture}")
    low, high, mean = min(g.degrees), max(g.degrees), sum(g.degrees) / g.n
    out.print(f"{spec}: {g.n} nodes, {len(g.edge_array)} {'arcs' if g.directed else 'edges'}")
    out.print(f"degrees: {low if low == high else f'{low} to {high}, mean {mean:.3g}'}")
    if g.is_connected:
        out.print(f"diameter: {g.diameter}" if g.n <= _MOST else "connected: yes")
    else:
        out.print(_components(g))
    if g.n > _MOST:
        out.print(f"diameter and speed of mixing: not computed above {_MOST:,} nodes; try a smaller graph of this kind")
        return
    rows = []
    for name in _SCHEMES:
        try:
            with err.status(f"{name} on {g.n} nodes"):  # in a terminal; the optimal gap of 60 nodes takes seconds
                W = lookup("scheme", name).target(g)
                rows.append((name, f"{consensus_factor(W):.6f}", f"{spectral_gap(W):.6f}", ""))
        except MixwiseError as error:
            rows.append((name, "–", "–", str(error).partition(";")[0]))
    out.print(columns(("scheme", "consensus factor p", "spectral gap", ""), rows))
    if g.n <= 64:
        out.print(terminal_picture(g))


def _components(g: Graph) -> str:
    sizes = sorted((len(component) for component in g.components), reverse=True)
    listed = ", ".join(map(str, sizes[:8])) + (", …" if len(sizes) > 8 else "")
    return f"not connected: {len(sizes)} components of {listed} nodes"


def weights(
    spec: Spec,
    scheme: Annotated[str, typer.Option(help=_SCHEME_HELP, autocompletion=offer_schemes)],
    gradients: Annotated[Path | None, typer.Option(help="Gradients, one row per node, as a .npy file.")] = None,
    regularization: Annotated[float, typer.Option(help="λ of the gme scheme.")] = 0.0,
    symmetric: Annotated[bool, typer.Option("--symmetric", help="Symmetric weights from the gme scheme.")] = False,
    file: Annotated[Path | None, typer.Option("--out", help="Save W: .npy (n × n) or .csv (i, j, weight).")] = None,
    seed: Seed = 0,
) -> None:
    """Compute the mixing weights of a graph.

    With gradients, also shows how much of their disagreement one mixing leaves.

    Example: mixwise weights ring:16 --scheme gme --gradients grads.npy --out W.npy
    """
    import numpy as np

    from mixwise.graphs import parse
    from mixwise.mixing import consensus_factor, gradient_mixing_error, heterogeneity, spectral_gap

    g = parse(spec, seed)
    if file is not None and file.suffix not in (".npy", ".csv"):
        raise ConfigError(f"--out {file}: W is saved as .npy (n × n array) or .csv (i, j, weight)")
    G = None if gradients is None else _gradients(gradients, g.n)
    if not g.is_connected:
        err.print(f"warning: {_components(g)}, so no weights let all nodes learn from each other; add edges")
    with err.status(f"{scheme} on {g.n} nodes"):
        W = _weights(g, scheme, G, regularization, symmetric)
    if file is not None:
        _save_weights(W, file)
        out.print(f"weights: {file}")
    if g.n <= 16:
        out.print(np.array2string(W.to_dense(), precision=3, suppress_small=True, max_line_width=200))
    out.print(f"messages per step: {W.messages}")
    out.print(f"consensus factor p: {consensus_factor(W):.6f}")
    out.print(f"spectral gap: {spectral_gap(W):.6f}")
    if G is not None:
        error, total = gradient_mixing_error(G, W), heterogeneity(G) * g.n
        share = f", {error / total:.2%} of the disagreement before mixing" if total > 0 else ""
        out.print(f"gradient mixing error: {error:.6g}{share}")


def _weights(g: Any, scheme: str, G: Any, regularization: float, symmetric: bool) -> MixingMatrix:
    from mixwise.mixing import gram_matrix, minimize_gme

    if scheme in _SCHEMES or ":" in scheme:
        W: MixingMatrix = lookup("scheme", scheme).target(g)
        return W
    if scheme != "gme":
        raise ConfigError(unknown("scheme", scheme, [*_SCHEMES, "gme"]))
    if G is None:
        raise ConfigError("--scheme gme fits the weights to gradients; give them with --gradients FILE.npy")
    return minimize_gme(gram_matrix(G), g, regularization=regularization, symmetric=symmetric).W


def _gradients(path: Path, n: int) -> Any:
    """The gradients in a file, (n, d)."""
    import numpy as np

    try:
        G = np.load(path, allow_pickle=False)
    except Exception as error:  # NumPy parses the header as Python, and allocates what it announces
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not a .npy array"
        raise ConfigError(f"--gradients {path} cannot be read: {reason}") from None
    if not isinstance(G, np.ndarray) or G.ndim != 2 or len(G) != n or G.dtype.kind not in "fiu":
        held = f"an array of shape {G.shape}" if isinstance(G, np.ndarray) else "several arrays"
        raise ConfigError(f"--gradients {path} holds {held}; it must hold one row of numbers per node, ({n}, d)")
    return G.astype(np.float64)


def _save_weights(W: MixingMatrix, path: Path) -> None:
    import numpy as np

    if path.suffix == ".npy":
        np.save(path, W.to_dense())
    else:
        pattern = W.graph.pattern
        entries = zip(pattern.rows.tolist(), pattern.cols.tolist(), W.weights.tolist(), strict=True)
        path.write_text("i,j,weight\n" + "".join(f"{i},{j},{w!r}\n" for i, j, w in entries), "utf-8")


def plan(
    spec: Spec,
    model_size: ModelSize = 1_000_000,
    latency: Annotated[float, typer.Option(help="Of every link, in milliseconds.")] = 20.0,
    bandwidth: Annotated[float, typer.Option(help="Of every link, in Mbit/s.")] = 10.0,
    step_size: Annotated[float, typer.Option(help="Of the optimizer's steps, relative to the parameters.")] = 0.03,
    seed: Seed = 0,
) -> None:
    """Predict the cost and the effect of gossip policies on a graph.

    Disagreement is that of nodes that take independent random steps of variance 1, right after a mixing; with full
    averaging it is 0. Rows in int8 leave more, the more the smaller the steps are beside the parameters. Messages of a
    round travel at the same time, rounds one after the other. The line marked (auto) is the choice of `policy: auto`
    and `wire_dtype: auto` for these links: the fewest rounds that leave at most 0.3 before rounding (0.52 if nodes have
    different degrees), or an exact average in at most three times as many. On irregular graphs it chooses pairs by the
    data if that takes at most a tenth longer. The last line is for comparison: an all-reduce around a ring of all nodes
    with such links.

    Example: mixwise plan torus:6x6 --latency 50 --bandwidth 100 --model-size 270000
    """
    for name, value in (("--model-size", model_size), ("--bandwidth", bandwidth), ("--step-size", step_size)):
        if not 0 < value < math.inf:  # NaN fails every comparison
            raise ConfigError(f"{name} {value:g}; give a number above 0")
    if not 0 <= latency < math.inf:
        raise ConfigError(f"--latency {latency:g}; give 0 or more milliseconds")
    import torch

    from mixwise import policies
    from mixwise.graphs import parse
    from mixwise.mixing import metropolis_hastings
    from mixwise.network import Link, Links
    from mixwise.network.traffic import average_bytes, message_bytes
    from mixwise.network.wire import Wire
    from mixwise.policies.edge_coloring import rounds_that_fit
    from mixwise.protocols import Context, Policy
    from mixwise.training.checks import check_connected

    g = parse(spec, seed)
    g.require_undirected("mixwise plan")
    check_connected(g)
    links = Links(Link(latency / 1e3, bandwidth * 1e6 / 8))
    row = torch.empty(1, model_size, device="meta")
    forms = {wire: Wire.of(row, wire) for wire in (None, torch.int8)}  # None: rows travel as they are
    sizes = {wire: message_bytes(row, form) for wire, form in forms.items()}
    auto = policies.Auto().choose(Context(g, links=links, row_bytes=sizes[None], wire_bytes=sizes[torch.int8]))
    families: list[Callable[[int], Policy]] = [
        policies.Pairs, policies.AwarePairs, policies.HeterogeneityAwareMatchings, policies.EdgeColoring,
        policies.Matchings,
    ]  # fmt: skip
    usual, fitting = policies.Fixed("metropolis-hastings"), rounds_that_fit(g)
    exact = [usual, *(family(rounds) for rounds in sorted({1, fitting}) for family in families)]
    chosen = auto.rounds or 1 if isinstance(auto, policies.Pairs | policies.AwarePairs) else 1
    rounded = [usual, *(policies.Pairs(rounds) for rounds in sorted({1, fitting, chosen}))]
    rounded += [auto] if isinstance(auto, policies.AwarePairs) else []
    unrounded = [usual] if metropolis_hastings(g).is_average else []  # an average over all nodes
    rows = []
    for policy, wire in [*((each, None) for each in exact), *((each, torch.int8) for each in rounded)]:
        sent = None if policy in unrounded or forms[wire] is None else wire
        f = policies.forecast(policy, g, sizes[sent], links, wire_dtype=sent, step_size=step_size)
        cells = f"{f.rounds:.0f}", f"{f.bytes / 1e6:.3g}", f"{f.seconds:.3g}", f"{f.disagreement:.3g}"
        marked = f"{kind(policy)} (auto)" if wire is not None and policy == auto else kind(policy)
        rows.append((marked, "float32" if wire is None else "int8", *cells))
    megabytes, seconds = average_bytes(g.n, sizes[None]) / g.n / 1e6, links.average(g, sizes[None])
    rows.append(("all-reduce", "float32", "–", f"{megabytes:.3g}", f"{seconds:.3g}", "0"))
    out.print(columns(("policy", "wire", "rounds", "MB/node", "seconds", "disagreement"), rows))
