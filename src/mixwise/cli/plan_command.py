"""`mixwise plan`: what each policy would cost on a network, before any training."""

from __future__ import annotations

from typing import Annotated

import typer

from mixwise.cli.weights_command import Seed, Spec
from mixwise.errors import ConfigError
from mixwise.terminal import columns, out

_HEADER = ("policy", "wire", "rounds", "MB/node", "seconds", "disagreement")


def plan(
    spec: Spec,
    model_size: Annotated[int, typer.Option(help="Parameters of the model.")] = 1_000_000,
    latency: Annotated[float, typer.Option(help="Of every link, in milliseconds.")] = 20.0,
    bandwidth: Annotated[float, typer.Option(help="Of every link, in Mbit/s.")] = 10.0,
    seed: Seed = 0,
) -> None:
    """Predict the cost and the effect of gossip policies on a graph.

    Disagreement is that of nodes that take independent random steps of variance 1, right after a mixing; with full
    averaging it is 0. Messages of a round travel at the same time, rounds one after the other. The line marked (auto)
    is the choice of `policy: auto` and `wire_dtype: auto` for these links: the fewest rounds that leave at most 0.2. On
    irregular graphs it chooses pairs by the data if that takes at most a tenth longer.

    Example: mixwise plan torus:6x6 --latency 50 --bandwidth 100 --model-size 270000
    """
    for name, value in (("--model-size", model_size), ("--bandwidth", bandwidth)):
        if value <= 0:
            raise ConfigError(f"{name} {value:g}; give a number above 0")
    if latency < 0:
        raise ConfigError(f"--latency {latency:g}; give 0 or more milliseconds")
    import torch

    from mixwise.graphs import parse
    from mixwise.mixing import metropolis_hastings
    from mixwise.network import Link, Links
    from mixwise.network.traffic import message_bytes
    from mixwise.network.wire import Wire
    from mixwise.policies import (
        Auto,
        AwarePairs,
        EdgeColoring,
        Fixed,
        HeterogeneityAwareMatchings,
        Matchings,
        Pairs,
        forecast,
    )  # fmt: skip
    from mixwise.policies.edge_coloring import rounds_that_fit
    from mixwise.protocols import Context, Policy
    from mixwise.training.checks import check_connected

    g = parse(spec, seed)
    g.require_undirected("mixwise plan")
    check_connected(g)
    links = Links(Link(latency / 1e3, bandwidth * 1e6 / 8))
    row = torch.empty(1, model_size, device="meta")
    sizes = {wire: message_bytes(row, Wire.of(row, wire)) for wire in (None, torch.int8)}
    auto = Auto().choose(Context(g, links=links, row_bytes=sizes[None], wire_bytes=sizes[torch.int8]))
    choices: list[tuple[str, Policy | str, torch.dtype | None]] = [("metropolis-hastings", "metropolis-hastings", None)]
    for rounds in sorted({1, rounds_that_fit(g)}):
        choices += [
            ("pairs", Pairs(rounds), None),
            ("aware-pairs", AwarePairs(rounds), None),
            ("heterogeneity-aware-matchings", HeterogeneityAwareMatchings(rounds), None),
            ("edge-coloring", EdgeColoring(rounds), None),
            ("matchings", Matchings(rounds), None),
        ]
    choices.append(("metropolis-hastings", Fixed(metropolis_hastings), torch.int8))
    chosen = auto.rounds or 1 if isinstance(auto, Pairs | AwarePairs) else 1
    choices += [("pairs", Pairs(rounds), torch.int8) for rounds in sorted({1, rounds_that_fit(g), chosen})]
    choices += [("aware-pairs", auto, torch.int8)] if isinstance(auto, AwarePairs) else []
    rows = []
    for name, policy, wire in choices:
        f = forecast(policy, g, sizes[wire], links)
        cells = f"{f.rounds:.0f}", f"{f.bytes / 1e6:.3g}", f"{f.seconds:.3g}", f"{f.disagreement:.3g}"
        marked = f"{name} (auto)" if wire is not None and policy == auto else name
        rows.append((marked, "float32" if wire is None else "int8", *cells))
    out.print(columns(_HEADER, rows))
