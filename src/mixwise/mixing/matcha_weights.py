"""MATCHA: matchings that are activated at random, important ones more often (Wang et al., 2019).

Legend: the edges are divided into matchings with Laplacians L_1 … L_M; in mixing t matching j is active with
probability p_j, B_j ∈ {0, 1}, independently. W = I − α Σ_j B_j L_j.

    1.  maximize  λ₂(Σ_j p_j L_j)   subject to  Σ_j p_j ≤ budget · M,  0 ≤ p_j ≤ 1
    2.  minimize  ρ(α) = ‖E[W²] − J‖₂ = λ_max(I − J − 2α L̄ + α² (L̄² + 2 L̃)),   L̄ = Σ p_j L_j,  L̃ = Σ p_j (1 − p_j) L_j,

since E[(ΣBL)²] = L̄² + Σ p_j (1 − p_j) L_j² and L_j² = 2 L_j for a matching.

Difference from the paper: a mixing matrix has no negative weights, but with α > 1/Δ the paper's W may have some when
many matchings are active at once. Then, and only at nodes whose current degree d exceeds 1/α, an edge weighs 1/d
instead: w_ij = min(α, 1/d_i, 1/d_j).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.graphs.matchings import matching_decomposition
from mixwise.graphs.spec import GraphLike, as_graph
from mixwise.mixing.matrix import FloatArray, MixingMatrix
from mixwise.mixing.metrics import laplacian, largest_off_constant, lowest
from mixwise.mixing.weights import from_edge_weights
from mixwise.seeding import numpy_generator

ACCURACY = 1e-4  # relative gap between the λ₂ found and its upper bound at which the search stops
_ROUNDS = 300  # of cutting planes
_CUTS = 4  # eigenvectors per round


@dataclass(frozen=True)
class MatchaWeights:
    """The distribution that MATCHA draws mixing matrices from.

    Attributes:
        matchings: the M matchings that the edges are divided into.
        probabilities: p (M,), how often each is active.
        alpha: the step α.
        rho: ρ(α) = ‖E[W²] − J‖₂, before negative weights are cut.
        connectivity: λ₂ of the expected Laplacian L̄.
        bound: an upper bound of the connectivity over all probabilities.
        n: the number of nodes.
    """

    matchings: tuple[Graph, ...]
    probabilities: tuple[float, ...]
    alpha: float
    rho: float
    connectivity: float
    bound: float
    n: int

    def draw(self, seed: int, t: int) -> MixingMatrix:
        """The matrix of mixing t, on the graph of the active matchings."""
        active = numpy_generator(seed, "matcha", t).random(len(self.matchings)) < np.asarray(self.probabilities)
        return self.weights(active.tolist())

    def weights(self, active: list[bool]) -> MixingMatrix:
        """I − α Σ L_j over the active matchings, with negative weights cut."""
        edges = [edge for matching, used in zip(self.matchings, active, strict=True) if used for edge in matching.edges]
        graph = Graph(self.n, edges)
        degrees = np.asarray(graph.degrees)[graph.edge_array].max(axis=1)
        return from_edge_weights(graph, np.minimum(self.alpha, 1 / degrees))


def matcha(graph: GraphLike, budget: float) -> MatchaWeights:
    """MATCHA's probabilities and step for a connected graph.

    The probabilities are found by cutting planes, λ₂(L) ≤ vᵀLv for every unit v ⟂ 𝟏: a linear program in M variables
    for any n. Its upper bound certifies them to 0.01 %, which was reached on all graphs tried.

    Args:
        graph: a connected undirected graph.
        budget: the expected fraction of active matchings, in (0, 1].
    """
    if not 0 < budget <= 1:  # NaN fails every comparison
        raise MixingError(f"budget = {budget}; the expected fraction of active matchings lies in (0, 1]")
    graph = as_graph(graph)
    graph.require_connected("MATCHA")
    matchings = matching_decomposition(graph)
    if not matchings:
        return MatchaWeights((), (), 0.0, 0.0, 0.0, 0.0, graph.n)
    probabilities, connectivity, bound = _best_probabilities(matchings, budget * len(matchings))
    alpha, rho = _best_step(matchings, probabilities)
    return MatchaWeights(matchings, tuple(probabilities.tolist()), alpha, rho, connectivity, bound, graph.n)


def _best_probabilities(matchings: tuple[Graph, ...], total: float) -> tuple[FloatArray, float, float]:
    """Step 1: p (M,), λ₂ of its expected Laplacian, and an upper bound of λ₂ over all p."""
    from scipy.optimize import linprog

    M = len(matchings)
    if total >= M:  # every p_j = 1: λ₂ grows with every weight
        ones = np.ones(M)
        value = float(lowest(_expected(matchings, ones), 1)[0][0])
        return ones, value, value
    p = np.full(M, total / M)
    best, best_value, bound = p, -np.inf, np.inf
    cuts: list[FloatArray] = []
    for _ in range(_ROUNDS):
        values, vectors = lowest(_expected(matchings, p), _CUTS)
        if values[0] > best_value:
            best, best_value = p, float(values[0])
        if best_value >= (1 - ACCURACY) * bound:
            break
        for v in vectors.T:  # vᵀ L_j v for all matchings j
            cuts.append(np.array([((v[m.edge_array[:, 0]] - v[m.edge_array[:, 1]]) ** 2).sum() for m in matchings]))
        # maximize s subject to s ≤ cut · p for all cuts, Σ p ≤ total
        A = np.block([[-np.array(cuts), np.ones((len(cuts), 1))], [np.ones((1, M)), np.zeros((1, 1))]])
        b = np.append(np.zeros(len(cuts)), total)
        solved = linprog(np.append(np.zeros(M), -1.0), A_ub=A, b_ub=b, bounds=[(0, 1)] * M + [(None, None)])
        if solved.x is None:
            break  # return the best so far; the bound tells how good it is
        bound = min(bound, float(solved.x[-1]))
        p = (solved.x[:-1].clip(0, 1) + best) / 2  # halfway to the optimum of few cuts, which alone is erratic
    return best, best_value, bound


def _best_step(matchings: tuple[Graph, ...], p: FloatArray) -> tuple[float, float]:
    """Step 2: α in [0, 1/2], beyond which even a single pair overshoots, and ρ(α).

    ρ is a maximum of convex parabolas in α, so it has one valley.
    """
    from scipy.optimize import minimize_scalar

    mean, variance = _expected(matchings, p), _expected(matchings, p * (1 - p))
    second = sparse.csr_array(mean @ mean + 2 * variance)

    def rho(alpha: float) -> float:
        moment = sparse.eye_array(mean.shape[0]) - 2 * alpha * mean + alpha**2 * second
        return largest_off_constant(sparse.csr_array(moment))

    found = minimize_scalar(rho, bounds=(0, 0.5), method="bounded", options={"xatol": 1e-9})
    return min(((alpha, rho(alpha)) for alpha in (float(found.x), 0.5)), key=lambda pair: pair[1])


def _expected(matchings: tuple[Graph, ...], p: FloatArray) -> sparse.csr_array:
    """Σ_j p_j L_j."""
    edges = np.concatenate([matching.edge_array for matching in matchings])
    return laplacian(matchings[0].n, edges, np.repeat(p, [len(matching.edge_array) for matching in matchings]))
