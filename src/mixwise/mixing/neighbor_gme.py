"""GME-opt without a center: every node finds its own weights, and talks only to its neighbors.

    minimize  Σ_j f_j(w_j),  f_j(w) = wᵀ Γ_j w + λ s ‖w‖²     (w_j: column j of W, Γ_j: Γ on the neighborhood of j)
    subject to  column sums 1 (a matter of each receiver),  rows in the simplex (a matter of each sender)

Consensus ADMM (Boyd et al. 2011) with two copies of W: the receivers' A, whose columns sum to 1, and the senders' B,
whose rows are in the simplex. With over-relaxation α and scaled dual variables U, one iteration is

    a_j = argmin f_j(a) + ρ/2 ‖a − b_j + u_j‖²,  sum 1      each receiver, (deg + 1) unknowns
    V = α A + (1 − α) B + U                                  one number to each neighbor
    b_i = the projection of row i of V on the simplex        each sender; one number to each neighbor
    U = V − B

Whatever it has found when it is asked, there is a certificate. Below: a is the minimizer of f_j(a) + ⟨y_j, a⟩ over
sum 1, for Y = ρ (A − B + U) as they were before V; so for every feasible W

    F(W) ≥ Σ_j f_j(a_j) + ⟨y_j, a_j⟩ − Σ_i max_j y_ij        (⟨Y, W⟩ ≤ Σ_i max_j y_ij, since rows are in the simplex)

Above: B, whose column sums are almost 1, is made doubly stochastic by flows along a tree (the imbalance of a subtree
goes over the edge to its parent), and W ≥ 0 by the smallest admixture of Metropolis-Hastings weights. The difference
decides when to stop; the two parts of it, above and below F(A), decide whether ρ should be larger or smaller.

Symmetric W: B is projected on the symmetric matrices ≥ 0 instead, the loops are what is left of a row, and ⟨Y, W⟩ is
⟨(Y + Yᵀ)/2, W⟩.

Legend: m nodes owned here; S (m, k) sketches; vectors over the E entries of `Neighborhoods`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.graphs.trees import need_connected
from mixwise.mixing.matrix import FloatArray, Kind, MixingMatrix
from mixwise.mixing.neighborhoods import Neighborhoods
from mixwise.mixing.solution import GmeSolution
from mixwise.mixing.tree_sweeps import Exchange, TreeSweeps
from mixwise.mixing.weights import metropolis_hastings

Blocks: TypeAlias = list[FloatArray]  # Γ on the neighborhoods: (g, D, D) per group

TIE_BREAK = 1e-8  # λ₀ on the scaled Γ: of all optimal W, the one of smallest ‖W‖_F, which mixes the most

_RELAXATION = 1.6  # α
_BETWEEN_TESTS = 10  # iterations; a test takes three ways through the tree
_BALANCE = 5.0  # how unequal the two parts of the gap may be before ρ is doubled or halved
_CALMER = 0.7  # how much smaller a step of ρ is than one in the other direction
_PENALTIES = (2.0**-10, 2.0**10)  # ρ, for Γ scaled to mean diagonal 1
_NEAR_ZERO = 1e-3  # of the error of Metropolis-Hastings weights: an optimum below that is told from 0 no further
_LARGEST = 1e140  # number in a sketch: its squares must be finite, and their sums
_EXACT = 1e-9  # how far from 1 the sums of a returned W may be


@dataclass(frozen=True)
class Start:
    """Where an earlier solve ended, to begin the next one there; one row per owned node, filled up with 0."""

    heard: FloatArray  # (m, width), B as the receivers know it
    dual: FloatArray  # (m, width), Y = ρ U


class _Candidate(NamedTuple):
    """Weights whose sums are 1, as senders and as receivers know them; they may be negative."""

    sent: FloatArray
    heard: FloatArray


class _Verdict(NamedTuple):
    """What a test tells."""

    theta: float  # the share of Metropolis-Hastings weights that makes a candidate R a W ≥ 0
    total: float  # F(W), in the unit of the solve
    error: float  # Tr(WᵀΓW), in the caller's
    receivers: float  # F(A)
    bound: float  # no W has a smaller F


class NeighborGme:
    """GME-opt on one graph by messages along its edges, laid out once and solved for many sketches.

    Args:
        graph: undirected and connected.
        nodes: the nodes that are owned here; the others are owned elsewhere, where the same calls are made.
        exchange: how messages travel (`Network.exchange`).

    All nodes learn the mean sketch, and numbers that are sums over all nodes; sketches go to neighbors only.
    """

    def __init__(self, graph: Graph, nodes: range, exchange: Exchange) -> None:
        need_connected(graph, 'solver="local", where nodes talk both ways,')
        self.graph, self.nodes = graph, nodes
        self._exchange = exchange
        self._near = Neighborhoods(graph, nodes, exchange)
        self._tree = TreeSweeps(graph, nodes, exchange)
        parents = self._tree.parents[nodes.start : nodes.stop]
        # Where each owned node's entry for its parent is; node 0 has none.
        owners = self._near.owners
        self._upwards = np.flatnonzero(
            (self._near.others == parents[owners]) & (self._near.others != owners + nodes.start)
        )
        self._usual = metropolis_hastings(graph).weights[self._near.heard]  # M, symmetric: sent = heard

    # --- what is known of Γ ---
    def look(self, S: npt.NDArray[Any], unless_zero: int = 0) -> Blocks | None:
        """Γ on the neighborhoods of the owned nodes, from the nodes' sketches.

        With `unless_zero` = c: None if the first c numbers of the sketches are 0 at all nodes.
        """
        near, n = self._near, self.graph.n
        values = np.asarray(S, dtype=np.float64)
        strange = ~np.asarray((np.abs(values) <= _LARGEST).all(axis=1))  # NaN fails every comparison
        ids = np.arange(self.nodes.start, self.nodes.stop)
        summands = np.where(strange[:, None], 0.0, values)
        told = np.column_stack([summands, values[:, :unless_zero].any(axis=1), np.where(strange, -ids, -n)])
        *sums, some, first = self._tree.total(told, maxima=1).tolist()
        if -first < n:
            raise MixingError(
                f"the sketch of node {-first:.0f} is not finite, or above {_LARGEST:g}; look for NaN in its update, "
                f"or take smaller steps"
            )
        if unless_zero and not some:
            return None
        mean = np.array(sums) / n
        C = values[near.owners] - mean
        C[near.arcs] = np.asarray(self._exchange(S[near.owners[near.arcs]], self.graph), dtype=np.float64) - mean
        C = np.vstack([C, np.zeros_like(mean)])  # of a node that is not there
        return [part @ part.transpose(0, 2, 1) for part in (C[group.entries] for group in near.groups)]

    def blocks(self, Gamma: FloatArray) -> Blocks:
        """Γ (n, n) on the neighborhoods of the owned nodes, for those who know all of it."""
        others = np.append(self._near.others, self.graph.n)  # a node that is not there
        wider = np.pad(Gamma, (0, 1))
        ids = [others[group.entries] for group in self._near.groups]
        return [wider[there[:, :, None], there[:, None, :]] for there in ids]

    def by_node(self, blocks: Blocks) -> FloatArray:
        """The same with one row per owned node, (m, width, width), filled up with 0: a form to be kept."""
        width = self._near.width
        rows = np.zeros((len(self.nodes), width, width))
        for group, block in zip(self._near.groups, blocks, strict=True):
            rows[group.nodes, : block.shape[1], : block.shape[1]] = block[:, :width, :width]
        return rows

    def from_rows(self, rows: FloatArray) -> Blocks:
        """The blocks that `by_node` made rows of."""
        blocks, width = [], self._near.width
        for members, entries in self._near.groups:
            D = entries.shape[1]
            block = np.zeros((len(members), D, D))
            block[:, :width, :width] = rows[members, :D, :D]
            blocks.append(block)
        return blocks

    # --- the solve ---
    def solve(
        self,
        blocks: Blocks,
        regularization: float = 0.0,
        *,
        tolerance: float = 1e-3,
        max_iterations: int = 300,
        symmetric: bool = False,
        start: Start | None = None,
    ) -> tuple[GmeSolution, Start]:
        """Weights whose objective is within `tolerance` of the optimum, or the best after `max_iterations`.

        Relative to the optimum; where that is less, to 1e-3 of what Metropolis-Hastings weights leave, or to what the
        tie-break may cost anyway, 1e-8 Tr Γ, over the tolerance. `residual` is an upper bound of this distance.
        """
        began = time.perf_counter()
        work = _Scaled(self, blocks, regularization, symmetric)
        near, M = self._near, self._usual
        b, u, rho = M, np.zeros_like(M), 1.0
        if start is not None:  # but not with its ρ: at its end that may be one for the last digits
            b, u = near.from_rows(start.heard), near.from_rows(start.dual)
        best, lowest, highest = (0.0, _Candidate(M, M)), work.usual_total, -math.inf
        objective, residual, iteration = work.usual_error, math.inf, 0
        steering = _Steering()
        while residual > tolerance and iteration < max_iterations:
            iteration += 1
            a = work.nearest(b - u, rho)
            test = iteration % _BETWEEN_TESTS == 0 or iteration == max_iterations
            y = rho * (a - b + u)
            v = _RELAXATION * a + (1 - _RELAXATION) * b + u
            sent, b = self._projected(v, symmetric)
            u = v - b
            if not test:
                continue
            found = self._feasible(sent, b, symmetric)
            verdict = work.judge(found, a, y)
            highest = max(highest, verdict.bound)
            if verdict.total < lowest:
                best, lowest, objective = (verdict.theta, found), verdict.total, verdict.error
            residual = max(lowest - highest, 0.0) / work.reference(highest, tolerance)
            wanted = steering.next_penalty(rho, verdict)
            u, rho = u * (rho / wanted), wanted
        status = "solved" if residual <= tolerance else "stopped at the cap"
        end = Start(near.by_node(b), near.by_node(rho * u))
        W = self._matrix(*best)
        return GmeSolution(W, objective, status, iteration, time.perf_counter() - began, residual), end

    def _projected(self, v: FloatArray, symmetric: bool) -> tuple[FloatArray, FloatArray]:
        """B as the senders and as the receivers know it, from V as the receivers know it."""
        near = self._near
        if symmetric:
            b = np.maximum((v + near.across(v)) / 2, 0.0)
            return b, b
        parts = near.filled(near.across(v), filling=-np.inf)
        sent = near.flat([on_simplex(part) for part in parts])
        return sent, near.across(sent)

    def _feasible(self, sent: FloatArray, heard: FloatArray, symmetric: bool) -> _Candidate:
        """B with sums of exactly 1.

        A flow φ from a node to its parent moves φ from one column sum to the other and leaves all row sums alone if
        W[node, parent] and W[parent, parent] gain φ/2 each and W[node, node] and W[parent, node] lose as much.
        """
        near = self._near
        if symmetric:
            w = heard.copy()
            w[near.loops] += 1 - near.sums(heard)
            return _Candidate(w, w)
        imbalance = self._tree.subtree_sums(near.sums(heard)[:, None] - 1)[:, 0]
        out = np.zeros_like(heard)
        out[self._upwards] = imbalance[near.owners[self._upwards]]
        gain = (near.across(out) - out) / 2  # of what a node hears along the tree's edges
        heard, sent, own = heard + gain, sent - gain, near.sums(gain)
        heard[near.loops] += own
        sent[near.loops] += own
        return _Candidate(sent, heard)

    def _matrix(self, theta: float, found: _Candidate) -> MixingMatrix:
        """(1 − θ) R + θ M, of which the rows and columns of the owned nodes are known here."""
        near, weights = self._near, np.zeros(len(self.graph.pattern.rows))
        for places, part in ((near.heard, found.heard), (near.sent, found.sent)):
            weights[places] = np.maximum((1 - theta) * part + theta * self._usual, 0.0)
        return MixingMatrix(self.graph, weights, "doubly", _EXACT, self.nodes)


class _Scaled:
    """The objective of one solve in its own unit: Γ has mean diagonal 1, and Γ and λ are divided by 1 + λ."""

    def __init__(self, problem: NeighborGme, blocks: Blocks, regularization: float, symmetric: bool) -> None:
        self._near, self._tree, self._usual, self.n = problem._near, problem._tree, problem._usual, problem.graph.n
        self._symmetric = symmetric
        M, loop = self._usual, np.zeros_like(problem._usual)
        loop[self._near.loops] = 1.0
        self._Gamma = blocks
        told = np.column_stack([self._quadratic(loop, loop), self._quadratic(M, M), self._near.sums(M * M)])
        trace, usual, norm = (float(total) for total in self._tree.total(told))
        self.scale = trace / self.n
        # Γ = 0 says nothing about the data: any λ > 0 then gives the W of smallest norm.
        penalty = 1.0 if self.scale == 0 else max(regularization, TIE_BREAK)
        self._shrink, self.penalty = 1 / (1 + penalty), penalty / (1 + penalty)
        self._Gamma = [block / (self.scale or 1.0) * self._shrink for block in blocks]
        self.usual_error = usual
        self._usual_quadratic = usual / (self.scale or 1.0) * self._shrink
        self.usual_total = self._usual_quadratic + self.penalty * norm
        self._there = self._near.filled(np.ones_like(M))
        self._solvers: dict[float, list[tuple[FloatArray, FloatArray]]] = {}

    def _quadratic(self, x: FloatArray, y: FloatArray) -> FloatArray:
        """x_jᵀ Γ_j y_j per node, (m,)."""
        result, parts = np.empty(len(self._near.starts)), zip(self._near.filled(x), self._near.filled(y), strict=True)
        for group, Gamma, (left, right) in zip(self._near.groups, self._Gamma, parts, strict=True):
            result[group.nodes] = (left * (Gamma @ right[:, :, None])[:, :, 0]).sum(axis=1)
        return result

    def nearest(self, z: FloatArray, rho: float) -> FloatArray:
        """argmin_a f_j(a) + ρ/2 ‖a − z_j‖² with sum 1, of all nodes.

        With K = (2Γ + 2λ + ρ)⁻¹ it is ρ (K − K𝟏𝟏ᵀK / 𝟏ᵀK𝟏) z + K𝟏 / 𝟏ᵀK𝟏.
        """
        if rho not in self._solvers:
            self._solvers[rho] = [self._solver(*part, rho) for part in zip(self._Gamma, self._there, strict=True)]
        parts = zip(self._solvers[rho], self._near.filled(z), strict=True)
        return self._near.flat([(P @ part[:, :, None])[:, :, 0] + q for (P, q), part in parts])

    def _solver(self, Gamma: FloatArray, there: FloatArray, rho: float) -> tuple[FloatArray, FloatArray]:
        K = np.linalg.inv(2 * Gamma + (2 * self.penalty + rho) * np.eye(Gamma.shape[1]))
        k = (K @ there[:, :, None])[:, :, 0]
        q = k / k.sum(axis=1, keepdims=True)
        return rho * (K - k[:, :, None] * q[:, None, :]), q

    def judge(self, found: _Candidate, a: FloatArray, y: FloatArray) -> _Verdict:
        """What all nodes know of a candidate R after one sweep."""
        near, M, R = self._near, self._usual, found.heard
        negative = found.sent < 0
        needed = np.where(negative, -found.sent / np.where(negative, M - found.sent, 1.0), 0.0)
        f_a = self._quadratic(a, a) + self.penalty * near.sums(a * a)
        y_sent = near.across(y)
        y_sent = (y + y_sent) / 2 if self._symmetric else y_sent
        told = [
            *(self._quadratic(R, R), self._quadratic(R, M), near.sums(R * R), near.sums(R * M), near.sums(M * M)),
            *(f_a, f_a + near.sums(y * a) - near.largest(y_sent), near.largest(needed)),
        ]
        totals = self._tree.total(np.column_stack(told), maxima=1)
        RR, RM, rr, rm, mm, F_a, bound, theta = (float(total) for total in totals)
        keep = 1 - theta
        error = max(keep**2 * RR + 2 * keep * theta * RM + theta**2 * self._usual_quadratic, 0.0)
        norm = keep**2 * rr + 2 * keep * theta * rm + theta**2 * mm
        return _Verdict(theta, error + self.penalty * norm, error / self._shrink * self.scale, F_a, bound)

    def reference(self, bound: float, tolerance: float) -> float:
        """What a gap is compared with: at most the optimum, if that is not near 0; ‖W − J‖²_F is ‖W‖²_F − 1."""
        least = TIE_BREAK * self.n / tolerance
        return max(bound - self.penalty, _NEAR_ZERO * (self.usual_total - self.penalty), least)


class _Steering:
    """Chooses ρ: a larger one closes the part of the gap above F(A) faster, a smaller one the part below.

    Steps up and down in turn would never end, so each turn makes the next ones smaller.
    """

    def __init__(self) -> None:
        self._step, self._last = 1.0, 0  # log₂ of the factor; the last direction

    def next_penalty(self, rho: float, verdict: _Verdict) -> float:
        """ρ until the next test."""
        above, below = abs(verdict.total - verdict.receivers), verdict.receivers - verdict.bound
        direction = 1 if above > _BALANCE * below else -1 if below > _BALANCE * above else 0
        if direction == -self._last != 0:
            self._step *= _CALMER
        self._last = direction or self._last
        return min(max(rho * 2 ** (direction * self._step), _PENALTIES[0]), _PENALTIES[1])


def on_simplex(V: FloatArray) -> FloatArray:
    """The nearest points to the rows of V (g, D) that are ≥ 0 and sum to 1: max(V − τ, 0), τ by sorting.

    >>> on_simplex(np.array([[0.5, 0.9, -1.0]])).round(3).tolist()
    [[0.3, 0.7, 0.0]]
    """
    descending = -np.sort(-V, axis=1)
    excess = np.cumsum(descending, axis=1) - 1
    counts = np.arange(1, V.shape[1] + 1)
    positive = (descending * counts > excess).sum(axis=1)
    threshold = excess[np.arange(len(V)), positive - 1] / positive
    nearest: FloatArray = np.maximum(V - threshold[:, None], 0.0)
    return nearest


def check_limits(tolerance: float, max_iterations: int) -> tuple[float, int]:
    """What a user may ask of the solver."""
    if not 0 < tolerance < 1:  # NaN fails every comparison
        raise MixingError(
            f"tolerance = {tolerance}; how far from the optimum a solve may stop lies in (0, 1), e.g. 1e-3"
        )
    if max_iterations < 1:
        raise MixingError(f"max_iterations = {max_iterations}; there is at least 1")
    return tolerance, max_iterations


def need_doubly(kind: Kind) -> None:
    """Refuse weights that the solver does not make."""
    if kind != "doubly":
        raise MixingError(
            f'kind = {kind!r} with solver="local": it makes doubly stochastic weights only; take solver="auto"'
        )
