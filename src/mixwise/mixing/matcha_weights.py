"""MATCHA: matchings that are switched on at random, the important ones more often (Wang et al., 2019).

Legend: the edges are split into matchings with Laplacians L_1 … L_M; in mixing t matching j is on with probability p_j,
B_j ∈ {0, 1}, independently. W = I − α Σ_j B_j L_j.

    1.  maximize  λ₂(Σ_j p_j L_j)   subject to  Σ_j p_j ≤ budget · M,  0 ≤ p_j ≤ 1
    2.  minimize  ρ(α) = ‖E[W²] − J‖₂ = λ_max(I − J − 2α L̄ + α² (L̄² + 2 L̃)),   L̄ = Σ p_j L_j,  L̃ = Σ p_j (1 − p_j) L_j,

since E[(ΣBL)²] = L̄² + Σ p_j (1 − p_j) L_j² and L_j² = 2 L_j for a matching.

Where we leave the paper: a mixing matrix has no negative weights, but with α > 1/Δ the paper's W may have some, when
many matchings are on at once. Then, and only at nodes whose degree d at the moment is above 1/α, an edge weighs 1/d
instead: w_ij = min(α, 1/d_i, 1/d_j).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from mixwise.errors import MixingError
from mixwise.graphs import Graph
from mixwise.graphs.matchings import matching_decomposition
from mixwise.mixing.matrix import FloatArray, MixingMatrix
from mixwise.mixing.spectra import laplacian, lowest
from mixwise.mixing.weights import from_edge_weights
from mixwise.seeding import numpy_generator

ACCURACY = 1e-4  # relative gap between the λ₂ found and its upper bound at which the search ends
_ROUNDS = 300  # of cutting planes
_CUTS = 4  # eigenvectors per round


@dataclass(frozen=True)
class MatchaWeights:
    """What is drawn from: matchings with their probabilities, the step α, and ρ = ‖E[W²] − J‖₂ before weights are cut.

    `connectivity` is λ₂ of the expected Laplacian and `bound` an upper bound of what any probabilities can reach.
    """

    matchings: tuple[Graph, ...]
    probabilities: tuple[float, ...]
    alpha: float
    rho: float
    connectivity: float
    bound: float
    n: int

    def draw(self, seed: int, t: int) -> MixingMatrix:
        """The matrix of mixing t, on the graph of the matchings that are on."""
        on = numpy_generator(seed, "matcha", t).random(len(self.matchings)) < np.asarray(self.probabilities)
        return self.weights(on.tolist())

    def weights(self, on: list[bool]) -> MixingMatrix:
        """I − α Σ L_j over the matchings that are on, without negative weights."""
        edges = [edge for matching, used in zip(self.matchings, on, strict=True) if used for edge in matching.edges]
        graph = Graph(self.n, edges)
        degrees = np.asarray(graph.degrees)[graph.edge_array].max(axis=1)
        return from_edge_weights(graph, np.minimum(self.alpha, 1 / degrees))


def matcha(graph: Graph, budget: float) -> MatchaWeights:
    """MATCHA's probabilities and step for a connected graph; a share `budget` of the matchings is on, on average.

    The probabilities are found by cutting planes, λ₂(L) ≤ vᵀLv for every unit v ⟂ 𝟏, as a linear program in M variables
    for any n; `bound` proves how good they are (0.01 % is asked for, and was reached on all graphs tried).
    """
    if not 0 < budget <= 1:  # NaN fails every comparison
        raise MixingError(f"budget = {budget}; the share of the matchings that is on, on average, lies in (0, 1]")
    matchings = matching_decomposition(graph)
    if not graph.is_connected:
        raise MixingError(
            f"the graph has {len(graph.components)} components, so no probabilities connect it; "
            f"take one component: graph.subgraph(max(graph.components, key=len))"
        )
    if not matchings:
        return MatchaWeights((), (), 0.0, 0.0, 0.0, 0.0, graph.n)
    probabilities, connectivity, bound = _best_probabilities(matchings, budget * len(matchings))
    alpha, rho = _best_step(matchings, probabilities)
    return MatchaWeights(matchings, tuple(probabilities.tolist()), alpha, rho, connectivity, bound, graph.n)


def _best_probabilities(matchings: tuple[Graph, ...], total: float) -> tuple[FloatArray, float, float]:
    """Step 1: p, λ₂ of its expected Laplacian, and an upper bound of it over all p."""
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
        # v_kᵀ L_j v_k for each of the vectors k and matchings j
        cuts += [
            np.array([((v[m.edge_array[:, 0]] - v[m.edge_array[:, 1]]) ** 2).sum() for m in matchings])
            for v in vectors.T
        ]
        # maximize s subject to s ≤ cut · p for all cuts, Σ p ≤ total
        A = np.block([[-np.array(cuts), np.ones((len(cuts), 1))], [np.ones((1, M)), np.zeros((1, 1))]])
        b = np.append(np.zeros(len(cuts)), total)
        solved = linprog(np.append(np.zeros(M), -1.0), A_ub=A, b_ub=b, bounds=[(0, 1)] * M + [(None, None)])
        if solved.x is None:
            break  # what was found so far stands, and the bound tells how good it is
        # The middle between the best so far and the optimum of the cuts: steadier than the optimum of few cuts.
        bound = min(bound, float(solved.x[-1]))
        p = (solved.x[:-1].clip(0, 1) + best) / 2
    return best, best_value, bound


def _best_step(matchings: tuple[Graph, ...], p: FloatArray) -> tuple[float, float]:
    """Step 2: α in [0, 1/2], beyond which even a single pair overshoots, and ρ(α).

    ρ is a maximum of convex parabolas in α, so it has one valley.
    """
    from scipy.optimize import minimize_scalar

    mean, spread = _expected(matchings, p), _expected(matchings, p * (1 - p))
    second = sparse.csr_array(mean @ mean + 2 * spread)

    def rho(alpha: float) -> float:
        E = sparse.csr_array(sparse.eye_array(mean.shape[0]) - 2 * alpha * mean + alpha**2 * second)
        return _largest_off_constant(E)

    found = minimize_scalar(rho, bounds=(0, 0.5), method="bounded", options={"xatol": 1e-9})
    return min(((alpha, rho(alpha)) for alpha in (float(found.x), 0.5)), key=lambda pair: pair[1])


def _expected(matchings: tuple[Graph, ...], p: FloatArray) -> sparse.csr_array:
    """Σ_j p_j L_j."""
    edges = np.concatenate([matching.edge_array for matching in matchings])
    weights = np.repeat(p, [len(matching.edge_array) for matching in matchings])
    return laplacian(matchings[0].n, edges, weights)


def _largest_off_constant(E: sparse.csr_array) -> float:
    """λ_max(E − J) of a symmetric positive semidefinite E with E𝟏 = 𝟏."""
    n = E.shape[0]
    if n <= 400:
        return float(np.linalg.eigvalsh(E.toarray() - 1 / n)[-1])
    from scipy.sparse.linalg import LinearOperator, eigsh

    operator = LinearOperator((n, n), matvec=lambda x: E @ x - x.mean(), dtype=np.float64)
    start = np.random.Generator(np.random.PCG64(0)).standard_normal(n)
    return float(eigsh(operator, 1, which="LA", v0=start, return_eigenvectors=False, tol=1e-8)[0])
