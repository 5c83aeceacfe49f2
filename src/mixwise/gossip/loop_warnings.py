"""Warnings about a loop whose mistakes no error would show: steps that are not mixed, learning rates that differ.

In calls that all ranks make anyway, every rank tells the others its learning rate and its steps since the last mixing,
and rank 0 warns, once of each mistake.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence

from mixwise.gossip.caller import warn_user
from mixwise.gossip.steps import Tally
from mixwise.network.survivors import listed

_SAME = 1e-5  # relative; rates travel in float32
_MIX = "call gossip.step() in its place, or gossip.mix() after it"
_SHOWN = 4  # learning rates in a warning


class LoopWarnings:
    """Warns of the mistakes of one loop.

    Args:
        owner: its `Gossip`; the warnings include that it was never used to mix, once it is gone.
        rank: of this process.
        tally: the steps of this rank.
    """

    def __init__(self, owner: object, rank: int, tally: Tally) -> None:
        self._tally = tally
        self._has_warned_of_rates = False
        if rank == 0:
            weakref.finalize(owner, _warn_if_never_mixed, tally)

    def compare_rates(self, rates: Mapping[int, float]) -> None:
        """Warn if the learning rates, by rank, differ."""
        if self._has_warned_of_rates or not _differ(rates.values()):
            return
        self._has_warned_of_rates = True
        ranks: dict[str, list[int]] = {}
        for rank, rate in sorted(rates.items()):
            ranks.setdefault(f"{rate:.6g}", []).append(rank)
        found = [f"{rate} on rank{'s' * (len(on) > 1)} {listed(on)}" for rate, on in ranks.items()]
        more = ", …" * (len(found) > _SHOWN)
        warn_user(
            f"the learning rates differ: {', '.join(found[:_SHOWN])}{more}; if they follow a schedule, pass it as "
            f"mixwise.Gossip(…, scheduler=scheduler), which keeps all ranks at the step of the run, and remove "
            f"scheduler.step(); in a trainer, give all ranks the same number of steps"
        )

    def compare_steps(self, call: str, unmixed: Sequence[float]) -> None:
        """Warn of a call between two mixings, given the steps of each rank since the last one."""
        steps = round(max(unmixed))
        if steps == 0 or self._tally.has_warned:
            return
        self._tally.has_warned = True
        tally = self._tally
        if tally.by_hand and not tally.mixed:
            warn_user(_never_mixed(tally))
        elif tally.by_hand:
            warn_user(f"{call}: {_calls(steps)} of optimizer.step(){tally.at} not mixed; {_MIX}")
        else:
            warn_user(
                f"{call} between two mixings: {steps} of {tally.local_steps} local steps are not mixed, so the models "
                f"are further apart than after a mixing; put the loop into `with gossip.join():`, which mixes what is "
                f"left, or take a multiple of local_steps={tally.local_steps} steps"
            )


def _differ(rates: Iterable[float]) -> bool:
    known = list(rates)
    return bool(known) and max(known) - min(known) > _SAME * max(map(abs, known))


def _never_mixed(tally: Tally) -> str:
    return f"nothing was mixed in {_calls(tally.taken)} of optimizer.step(){tally.at}; {_MIX}"


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"


def _warn_if_never_mixed(tally: Tally) -> None:
    """Warn at the end of a `Gossip`, unless an error has ended the program."""
    if not tally.taken or tally.mixed or tally.has_warned or hasattr(sys, "last_value"):
        return
    if tally.by_hand:
        warn_user(_never_mixed(tally))
    else:
        warn_user(f"nothing was mixed: the loop ended after {tally.taken} of {tally.local_steps} local steps")
