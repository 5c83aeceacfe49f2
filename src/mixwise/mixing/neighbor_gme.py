"""GME-opt without a center: every node finds its own weights by talking to its neighbors only.

    minimize    Σ_j f_j(w_j),  f_j(w) = wᵀ Γ_j w + λ s ‖w‖²     (w_j: column j of W, Γ_j: Γ on the neighborhood of j)
    subject to  columns that sum to 1 (known to each receiver),  rows in the simplex (known to each sender)

Consensus ADMM (Boyd et al., 2011) with two copies of W: the receivers' A, whose columns sum to 1, and the senders' B,
whose rows are in the simplex. With over-relaxation α and scaled dual variables U, one iteration is

    a_j = argmin f_j(a) + ρ/2 ‖a − b_j + u_j‖²,  sum 1      each receiver, (deg + 1) unknowns
    V = α A + (1 − α) B + U                                  one number to each neighbor
    b_i = the projection of row i of V on the simplex        each sender; one number to each neighbor
    U = V − B

The iterates come with a certificate. Lower bound: a_j minimizes f_j(a) + ⟨y_j, a⟩ over sum 1, with Y = ρ (A − B + U)
from before V; so for every feasible W

    F(W) ≥ Σ_j f_j(a_j) + ⟨y_j, a_j⟩ − Σ_i max_j y_ij        (⟨Y, W⟩ ≤ Σ_i max_j y_ij, since rows are in the simplex)

Upper bound: B, whose columns almost sum to 1, is made doubly stochastic by flows along a tree (the imbalance of a
subtree moves over the edge to its parent), and non-negative by the smallest admixture of Metropolis-Hastings weights.
The gap between the bounds decides when to stop; its parts above and below F(A) decide whether ρ grows or shrinks.

An iteration depends on V alone (B is its projection, U the rest); from time to time V jumps ahead (`Jumps`).

Symmetric W: B is projected on the symmetric matrices ≥ 0 instead, the loops are what is left of a row, and ⟨Y, W⟩ is
⟨(Y + Yᵀ)/2, W⟩.

Legend: m nodes owned here; S (m, k) sketches; vectors over the E entries of `Neighborhoods`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mixwise.errors import NotFiniteError
from mixwise.graphs import Graph
from mixwise.mixing.matrix import FloatArray, MixingMatrix
from mixwise.mixing.neighbor_objective import Blocks, Candidate, ScaledObjective, Verdict, on_simplex
from mixwise.mixing.neighborhoods import Exchange, Group, Neighborhoods
from mixwise.mixing.solution import LARGEST, GmeSolution, SolveStatus
from mixwise.mixing.weights import metropolis_hastings

_BALANCE = 5.0  # how unequal the two parts of the gap may be before ρ is doubled or halved
_DAMPING = 0.7  # how much smaller a step of ρ is than the one in the other direction before it
_PENALTIES = (2.0**-5, 2.0**10)  # the range of ρ, for Γ of mean diagonal 1; below it, flat directions of F take ages
_STEPS = 10  # K, the steps that a jump looks back
_RIDGE = 1e-8  # of the mean ‖r‖², so that nearly equal steps do not blow up α
_PROGRESS = 0.9  # a jump needs steps that are shorter by this factor than at the last jump
_RELAXATION = 1.6  # α
_BETWEEN_TESTS = 10  # iterations; a test takes three ways through the tree
_BETWEEN_JUMPS = 20  # iterations; ρ changes at most this often, because steps of different ρ cannot be compared
TOLERANCE = 1e-3  # by default: how far from the optimum it may stop, relative to the optimum
MAX_ITERATIONS = 5000  # by default; few solves come near it: Γ of rank 1 or 2 with an optimum near 0
_BLOCK = 1 << 17  # numbers of the sketches that are multiplied at a time: they stay in the cache
_EXACT = 1e-9  # how far from 1 the sums of a returned W may be


@dataclass(frozen=True)
class Start:
    """Where an earlier solve ended and the next one may start; one row per owned node, padded with 0."""

    heard: FloatArray  # (m, width), B as the receivers know it
    dual: FloatArray  # (m, width), Y = ρ U


class NeighborGme:
    """GME-opt on one graph by messages along its edges, prepared once and solved for many sketches.

    All nodes learn the mean sketch and some numbers that are sums over all nodes; sketches go to neighbors only.

    Args:
        graph: a connected undirected graph.
        nodes: the nodes that are owned here; processes that own the others make the same calls.
        exchange: how messages travel (`Network.exchange`).
    """

    def __init__(self, graph: Graph, nodes: range, exchange: Exchange) -> None:
        graph.require_connected('solver="local"')
        self.graph, self.nodes, self._exchange = graph, nodes, exchange
        self._near = near = Neighborhoods(graph, nodes, exchange)
        # The entry of each owned node for its parent in the tree; node 0 has none.
        to_parent = near.others == near.tree.parents[near.owners + nodes.start]
        self._upwards = np.flatnonzero(to_parent & (near.others != near.owners + nodes.start))
        self._M = metropolis_hastings(graph).weights[near.heard]  # symmetric: sent = heard

    # --- Γ on the neighborhoods ---
    def look(self, S: npt.NDArray[Any], unless_zero: int = 0) -> Blocks | None:
        """Γ on the neighborhoods of the owned nodes, from the nodes' sketches S (m, k).

        With `unless_zero` = c: None if the first c numbers of the sketches are 0 at all nodes.
        """
        near, n, k = self._near, self.graph.n, S.shape[1]
        local = np.empty((len(S), k + 2))  # one copy of all sketches: fresh memory costs as much as the arithmetic
        values = local[:, :k]
        values[:] = S
        bad = ~((values.max(axis=1) <= LARGEST) & (values.min(axis=1) >= -LARGEST))  # NaN fails every comparison
        local[:, k] = values[:, :unless_zero].any(axis=1)
        local[:, k + 1] = np.where(bad, -np.arange(self.nodes.start, self.nodes.stop), -n)
        values[bad] = 0.0
        *sums, some, first = near.tree.total(local, maxima=1).tolist()
        if -first < n:
            remedy = "look for NaN in its update, or use smaller steps"
            found = f"the sketch of node {-first:.0f} is not finite, or above {LARGEST:g}; {remedy}"
            raise NotFiniteError(found, node=int(-first))
        if unless_zero and not some:
            return None
        heard = np.empty((len(near.owners) + 1, S.shape[1]), dtype=S.dtype)  # the last row is the padding
        heard[near.loops], heard[near.arcs], heard[-1] = S, self._exchange(S[near.owners[near.arcs]], self.graph), 0
        return [self._products(heard, np.array(sums) / n, group) for group in near.groups]

    def _products(self, heard: npt.NDArray[Any], mean: FloatArray, group: Group) -> FloatArray:
        """Γ on the neighborhoods of a group; some nodes at a time, whose centered sketches stay in the cache."""
        g, D = group.entries.shape
        blocks, size = np.empty((g, D, D)), max(1, _BLOCK // (D * len(mean)))
        for start in range(0, g, size):
            entries = group.entries[start : start + size]
            C = heard[entries] - mean
            C[entries == len(heard) - 1] = 0.0
            np.matmul(C, C.transpose(0, 2, 1), out=blocks[start : start + size])
        return blocks

    def blocks(self, Gamma: FloatArray) -> Blocks:
        """Γ (n, n) on the neighborhoods of the owned nodes, where all of it is known."""
        others = np.append(self._near.others, self.graph.n)  # the padding
        padded = np.pad(Gamma, (0, 1))
        ids = [others[group.entries] for group in self._near.groups]
        return [padded[i[:, :, None], i[:, None, :]] for i in ids]

    def by_node(self, blocks: Blocks) -> FloatArray:
        """The blocks as one row per owned node, (m, width, width), padded with 0: the form that is kept."""
        width = self._near.width
        rows = np.zeros((len(self.nodes), width, width))
        for group, block in zip(self._near.groups, blocks, strict=True):
            rows[group.nodes, : block.shape[1], : block.shape[1]] = block[:, :width, :width]
        return rows

    def from_rows(self, rows: FloatArray) -> Blocks:
        """The blocks from one row per owned node; the inverse of `by_node`."""
        sizes = [group.entries.shape[1] for group in self._near.groups]
        extra = max(0, max(sizes) - self._near.width)
        padded = np.pad(rows, [(0, 0), (0, extra), (0, extra)])
        return [padded[group.nodes, :D, :D] for group, D in zip(self._near.groups, sizes, strict=True)]

    # --- the solve ---
    def solve(
        self,
        blocks: Blocks,
        regularization: float = 0.0,
        tolerance: float = TOLERANCE,
        max_iterations: int = MAX_ITERATIONS,
        symmetric: bool = False,
        start: Start | None = None,
    ) -> tuple[GmeSolution, Start]:
        """Weights whose objective is within `tolerance` of the optimum, or the best after `max_iterations`.

        The distance is relative to the optimum, or, if that is smaller, to 1e-3 of the error that Metropolis-Hastings
        weights leave, or to the cost of the tie-break, 1e-8 Tr Γ, over the tolerance. The solution's `residual` is an
        upper bound of it.
        """
        began = time.perf_counter()
        near, M = self._near, self._M
        work = ScaledObjective(near, M, blocks, regularization, symmetric)
        b, u, rho = M, np.zeros_like(M), 1.0
        if start is not None:  # but not with its ρ, which at the end may be one for the last digits
            b, u = near.from_rows(start.heard), near.from_rows(start.dual)
        best, lowest, highest = (0.0, Candidate(M, M)), work.usual_total, -math.inf
        objective, residual, iteration = work.usual_error, math.inf, 0
        steering, jumps = Steering(), Jumps(near)
        jumps.begin_at(b + u)
        while residual > tolerance and iteration < max_iterations:
            iteration += 1
            a = work.nearest(b - u, rho)
            y = rho * (a - b + u)
            v = _RELAXATION * a + (1 - _RELAXATION) * b + u
            sent, b = self._projected(v, symmetric)
            u = v - b
            jumps.add(v)
            if iteration % _BETWEEN_TESTS and iteration < max_iterations:
                continue
            found = self._feasible(sent, b, symmetric)
            verdict = work.judge(found, a, y)
            highest = max(highest, verdict.bound)
            if verdict.total < lowest:
                best, lowest, objective = (verdict.theta, found), verdict.total, verdict.error
            residual = max(lowest - highest, 0.0) / work.reference(highest, tolerance)
            if residual <= tolerance or iteration == max_iterations or iteration % _BETWEEN_JUMPS:
                continue
            if (ahead := jumps.ahead()) is not None:
                _, b = self._projected(ahead, symmetric)
                u = ahead - b
            before, rho = rho, steering.next_penalty(rho, verdict)
            u = u * (before / rho)
            jumps.begin_at(b + u)
        status = SolveStatus.OPTIMAL if residual <= tolerance else SolveStatus.STOPPED_AT_LIMIT
        end = Start(near.by_node(b), near.by_node(rho * u))
        W = self._matrix(*best)
        return GmeSolution(W, objective, status, iteration, time.perf_counter() - began, residual), end

    def _projected(self, v: FloatArray, symmetric: bool) -> tuple[FloatArray, FloatArray]:
        """B as the senders and as the receivers know it, from V as the receivers know it."""
        near = self._near
        if symmetric:
            b = np.maximum((v + near.across(v)) / 2, 0.0)
            return b, b
        sent = near.flat([on_simplex(part) for part in near.filled(near.across(v), filling=-np.inf)])
        return sent, near.across(sent)

    def _feasible(self, sent: FloatArray, heard: FloatArray, symmetric: bool) -> Candidate:
        """B with sums of exactly 1.

        A flow φ from a node to its parent moves φ from one column sum to the other and keeps all row sums if
        W[node, parent] and W[parent, parent] gain φ/2 each and W[node, node] and W[parent, node] lose as much.
        """
        near = self._near
        if symmetric:
            w = heard.copy()
            w[near.loops] += 1 - near.sums(heard)
            return Candidate(w, w)
        imbalance = near.tree.subtree_sums(near.sums(heard)[:, None] - 1)[:, 0]
        flow = np.zeros_like(heard)
        flow[self._upwards] = imbalance[near.owners[self._upwards]]
        gain = (near.across(flow) - flow) / 2  # of what a node hears along the tree's edges
        heard, sent, own = heard + gain, sent - gain, near.sums(gain)
        heard[near.loops] += own
        sent[near.loops] += own
        return Candidate(sent, heard)

    def _matrix(self, theta: float, found: Candidate) -> MixingMatrix:
        """(1 − θ) R + θ M, of which the rows and columns of the owned nodes are known here."""
        sent, heard = (np.maximum((1 - theta) * part + theta * self._M, 0.0) for part in found)
        weights = np.zeros(len(self.graph.pattern.rows))
        weights[self._near.heard], weights[self._near.sent] = heard, sent
        return MixingMatrix(self.graph, weights, "doubly", _EXACT, self.nodes)


# --- what speeds up the iteration ---
class Steering:
    """Chooses ρ: a larger one closes the part of the gap above F(A) faster, a smaller one the part below.

    Alternating steps up and down would never end, so each change of direction makes the next steps smaller.
    """

    def __init__(self) -> None:
        self._step, self._last = 1.0, 0  # log₂ of the factor; the last direction

    def next_penalty(self, rho: float, verdict: Verdict) -> float:
        """ρ until the next test."""
        above, below = abs(verdict.total - verdict.receivers), verdict.receivers - verdict.bound
        direction = 1 if above > _BALANCE * below else -1 if below > _BALANCE * above else 0
        if direction == -self._last != 0:
            self._step *= _DAMPING
        self._last = direction or self._last
        return min(max(rho * 2 ** (direction * self._step), _PENALTIES[0]), _PENALTIES[1])


class Jumps:
    """Anderson acceleration of an iteration v ← T(v) by messages between neighbors (Anderson, 1965).

    With r_k = v_{k+1} − v_k, the weights α that sum to 1 and minimize ‖Σ α_k r_k‖ tell where the steps would cancel:
    v = Σ α_k v_{k+1}. This needs only the products ⟨r_k, r_j⟩, which are sums over all nodes.

    Jumps alone could cycle, so one is made only where the steps are shorter than at any jump before. Otherwise the
    plain iteration continues, and converges.
    """

    def __init__(self, near: Neighborhoods) -> None:
        self._near, self._limit = near, math.inf
        self._points: list[FloatArray] = []

    def begin_at(self, v: FloatArray) -> None:
        """Forget all points but v: the iteration continues there, perhaps with another T."""
        self._points = [v]

    def add(self, v: FloatArray) -> None:
        """Add the next point of the iteration."""
        self._points = [*self._points[-_STEPS:], v]

    def ahead(self) -> FloatArray | None:
        """The point to jump to, the same at all nodes, or None to continue from the last point."""
        points = np.array(self._points)
        r = np.diff(points, axis=0)
        k, j = np.triu_indices(len(r))
        products = self._near.tree.total(np.add.reduceat(r[k] * r[j], self._near.starts, axis=1).T)
        R = np.zeros((len(r), len(r)))
        R[k, j] = R[j, k] = products
        length, trace = math.sqrt(R[-1, -1]), float(np.trace(R))
        if not 0 < length < self._limit:
            return None
        self._limit = _PROGRESS * length
        alpha = np.linalg.solve(R / trace + _RIDGE / len(r) * np.eye(len(r)), np.ones(len(r)))
        target: FloatArray = np.zeros_like(points[0])
        for weight, point in zip(alpha / alpha.sum(), points[1:], strict=True):
            target += weight * point  # a matrix product would round differently with other nodes beside them
        return target
