"""What a record tells about the mixings before it: the last weights of each kind, and how their optimization went."""

from __future__ import annotations

from typing import Any

from mixwise.mixing.solution import GmeSolution, SolveStatus
from mixwise.protocols import Plan, State
from mixwise.state import counts_like

_WORST_LAST = tuple(SolveStatus)
_COUNTS = ("solves", "solves_failed", "solve_iterations")


class MixingHistory:
    """The mixings since the last record, and the solves of the whole run.

    Attributes:
        optimized, other: the plans of the last mixing with optimized weights and of the last with others, since the
            last record; None if there was none.
        solves, solves_failed: solves so far, and those of them that found no weights.
        solve_status: the worst status since the last record; None if nothing was solved.
        solve_iterations: iterations of the last solve.
        left_graph: whether a mixing since the last record has sent along arcs that the graph does not have, as averages
            over all nodes do, and policies that declare edges of their own.
    """

    def __init__(self) -> None:
        self.solves = self.solves_failed = self.solve_iterations = 0
        self.clear()

    def clear(self) -> None:
        """Begin the time until the next record; the number of solves continues."""
        self.optimized: Plan | None = None
        self.other: Plan | None = None
        self.solve_status: SolveStatus | None = None
        self.left_graph = False

    def add(self, plan: Plan, leaves_graph: bool = False) -> None:
        """Remember the plan of a mixing, and whether it leaves the graph."""
        self.left_graph |= leaves_graph
        weights = Plan(plan.params, plan.updates)
        if plan.optimized:
            self.optimized = weights
        else:
            self.other = weights
        for solve in plan.solves:
            self._add_solve(solve)

    def _add_solve(self, solve: GmeSolution) -> None:
        self.solves += 1
        self.solves_failed += not solve.usable
        self.solve_iterations = solve.iterations
        known = [status for status in (self.solve_status, solve.status) if status is not None]
        self.solve_status = max(known, key=_WORST_LAST.index)

    def solve_figures(self) -> dict[str, Any]:
        """The status and iterations of the solves since the last record, and the numbers of those so far."""
        if not self.solves:
            return {}
        values: dict[str, Any] = {}
        if self.solve_status is not None:
            values = {"solve_status": self.solve_status, "solve_iterations": self.solve_iterations}
        return values | {"solves": self.solves, "solves_failed": self.solves_failed}

    # --- checkpoints ---
    def state(self) -> State:
        """Return everything that the next record depends on."""
        shared: dict[str, Any] = {name: getattr(self, name) for name in _COUNTS}
        shared["solve_status"] = None if self.solve_status is None else self.solve_status.value  # plain, for torch.load
        shared["left_graph"] = self.left_graph
        for kind in ("optimized", "other"):
            plan: Plan | None = getattr(self, kind)
            shared[f"{kind}.params"] = None if plan is None else plan.params
            shared[f"{kind}.updates"] = None if plan is None else plan.updates
        return State(shared=shared)

    def load(self, saved: State) -> None:
        """Continue from such a state."""
        shared = saved.shared
        vars(self).update(counts_like(dict.fromkeys(_COUNTS, 0), shared))
        self.solve_status = None if shared["solve_status"] is None else SolveStatus(shared["solve_status"])
        self.left_graph = bool(shared["left_graph"])
        for kind in ("optimized", "other"):
            params = shared[f"{kind}.params"]
            setattr(self, kind, None if params is None else Plan(params, shared[f"{kind}.updates"]))
