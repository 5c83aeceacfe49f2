"""`mixwise plan`: what each policy would cost on a network, before any training."""

from __future__ import annotations

from typing import Annotated

import typer

from mixwise.cli.weights_command import Seed, Spec
from mixwise.errors import ConfigError
from mixwise.terminal import columns, out

_HEADER = ("policy", "rounds", "rows/node", "MB/node", "seconds", "disagreement")


def plan(
    spec: Spec,
    model_size: Annotated[int, typer.Option(help="Parameters of the model.")] = 1_000_000,
    latency: Annotated[float, typer.Option(help="Of every link, in milliseconds.")] = 20.0,
    bandwidth: Annotated[float, typer.Option(help="Of every link, in Mbit/s.")] = 10.0,
    seed: Seed = 0,
) -> None:
    """Predict the cost and the effect of gossip policies on a graph.

    Disagreement is that of nodes that take independent random steps of variance 1, right after a mixing; with full
    averaging it is 0. Messages of a round travel at the same time, rounds one after the other, float32.

    Example: mixwise plan torus:6x6 --latency 50 --bandwidth 100 --model-size 270000
    """
    for name, value in (("--model-size", model_size), ("--bandwidth", bandwidth)):
        if value <= 0:
            raise ConfigError(f"{name} {value:g}; give a number above 0")
    if latency < 0:
        raise ConfigError(f"--latency {latency:g}; give 0 or more milliseconds")
    from mixwise.graphs import parse
    from mixwise.network import Link, Links
    from mixwise.policies import Auto, AwarePairs, EdgeColoring, HeterogeneityAwareMatchings, Matchings, Pairs
    from mixwise.policies.edge_coloring import rounds_that_fit
    from mixwise.protocols import Context, Policy
    from mixwise.training import forecast
    from mixwise.training.checks import check_connected

    g = parse(spec, seed)
    g.require_undirected("mixwise plan")
    check_connected(g)
    links = Links(Link(latency / 1e3, bandwidth * 1e6 / 8))
    choices: list[tuple[str, Policy | str]] = [("metropolis-hastings", "metropolis-hastings")]
    fitting = rounds_that_fit(g)
    for rounds in sorted({1, fitting}):
        choices += [
            ("pairs", Pairs(rounds)),
            ("aware-pairs", AwarePairs(rounds)),
            ("heterogeneity-aware-matchings", HeterogeneityAwareMatchings(rounds)),
            ("edge-coloring", EdgeColoring(rounds)),
            ("matchings", Matchings(rounds)),
        ]
    auto = Pairs(fitting) if isinstance(Auto().choose(Context(g)), Pairs) else AwarePairs(fitting)
    rows = []
    for name, policy in choices:
        f = forecast(policy, g, 4 * model_size, links)
        cells = f"{f.rounds:.0f}", f"{f.rows:.2f}", f"{f.bytes / 1e6:.3g}", f"{f.seconds:.3g}", f"{f.disagreement:.3g}"
        rows.append((f"{name} (auto)" if policy == auto else name, *cells))
    out.print(columns(_HEADER, rows))
