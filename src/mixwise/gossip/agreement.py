"""Whether all ranks are made alike; if not, which one differs, and in what."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from mixwise.gossip.description import Lines


def report(lines: Lines, error: Exception | None) -> str:
    """What a rank tells the others: what it is made of, or why it cannot go on."""
    return json.dumps({"error": None if error is None else str(error), "lines": lines})


def difference(reports: Sequence[str]) -> str | None:
    """What to tell everybody, given the reports of all ranks; None if all is well."""
    if len(set(reports)) == 1 and json.loads(reports[0])["error"] is None:
        return None
    read = [json.loads(text) for text in reports]
    for rank, told in enumerate(read):
        if told["error"] is not None:
            return f"rank {rank} cannot go on: {told['error']}"
    # The odd one out is named, also if it is rank 0; with two halves, those who differ from rank 0.
    usual = max(reports, key=lambda text: (Counter(reports)[text], -reports.index(text)))
    rank = next(rank for rank, text in enumerate(reports) if text != usual)
    return f"rank {rank} differs from rank {reports.index(usual)}: " + _first_difference(
        read[rank]["lines"], json.loads(usual)["lines"]
    )


def _first_difference(own: Lines, usual: Lines) -> str:
    for key in chain(own, usual):
        if key not in own:
            return f"it lacks: {key} {usual[key]}"
        if key not in usual:
            return f"it alone has: {key} {own[key]}"
        if own[key] != usual[key]:
            return f"{key} {own[key]} instead of {usual[key]}"
    return "another order of parameters or buffers"
