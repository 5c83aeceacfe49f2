"""What the theory tests share: random weights, and objectives with known constants.

Legend: X, G (n, d) rows of nodes, float64; W a MixingMatrix; eta a step size (as everywhere, mixing is Wᵀ X).
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import torch
from hypothesis import strategies as st

from builders import asymmetric, normal_rows
from mixwise.graphs import Graph, complete, ring
from mixwise.mixing import MixingMatrix, gram_matrix, metropolis_hastings, minimize_gme, uniform
from strategies import connected_graphs

Gradients = Callable[[torch.Tensor], torch.Tensor]  # X (n, d) -> G (n, d), row i from f_i at row i

# Relative. The sums of a W from minimize_gme are 1 within 1e-9; the rounding of float64 (1e-13 here) is far below.
ROUNDING = 1e-8

seeds = st.integers(0, 2**32 - 1)
PLACES = {"distance": st.floats(-2, 1), "spread": st.floats(-3, 2), "seed": seeds}  # of x̄, and of the rows around it


# --- weights ---
def permutation_mixture(n: int, seed: int) -> MixingMatrix:
    """Σ_k θ_k P_k: by Birkhoff's theorem every doubly stochastic matrix has this form; asymmetric almost surely."""
    return asymmetric(n, seed, complete(n))


def optimized_weights(graph: Graph, seed: int) -> MixingMatrix:
    """The GME weights of random rows: asymmetric in general."""
    return minimize_gme(gram_matrix(normal_rows(graph.n, 3, seed)), graph).W


@st.composite
def mixing_matrices(draw, min_nodes: int = 2, max_nodes: int = 8) -> MixingMatrix:
    """Doubly stochastic weights of all kinds, symmetric or not, on a connected graph."""
    graph = draw(connected_graphs(min_nodes, max_nodes))
    return _weights_on(graph, draw(st.sampled_from(["metropolis", "optimized", "permutations"])), draw(seeds))


@st.composite
def mixing_distributions(draw, min_nodes: int = 2, max_nodes: int = 6) -> tuple[list[MixingMatrix], np.ndarray]:
    """One to three matrices for the same nodes, and how often each is drawn."""
    graph = draw(connected_graphs(min_nodes, max_nodes))
    kinds = draw(st.lists(st.sampled_from(["metropolis", "optimized", "permutations"]), min_size=1, max_size=3))
    matrices = [_weights_on(graph, kind, draw(seeds)) for kind in kinds]
    return matrices, np.random.default_rng(draw(seeds)).dirichlet(np.ones(len(matrices)))


def _weights_on(graph: Graph, kind: str, seed: int) -> MixingMatrix:
    if kind == "metropolis":
        return metropolis_hastings(graph)
    return optimized_weights(graph, seed) if kind == "optimized" else permutation_mixture(graph.n, seed)


def slow_wave(n: int) -> tuple[MixingMatrix, torch.Tensor, float]:
    """Weights 1/3 on a ring of n ≥ 6 nodes, their slowest wave (n, 1) and its eigenvalue λ = √(1 − p)."""
    wave = torch.cos(2 * torch.pi * torch.arange(n, dtype=torch.float64) / n)[:, None]
    return uniform(ring(n)), wave, (1 + 2 * np.cos(2 * np.pi / n)) / 3


# --- objectives ---
def outcomes(full: Gradients, noise: Gradients, n: int) -> Iterator[Gradients]:
    """∂F(·, ξ) = ∂f + ξ · noise for each of the 2ⁿ equally likely ξ: node i's noise is ± row i, independently."""
    for signs in itertools.product((-1.0, 1.0), repeat=n):
        xi = torch.tensor(signs, dtype=torch.float64)[:, None]
        yield lambda X, xi=xi: full(X) + xi * noise(X)


def one_draw(task) -> Gradients:
    """∂F(·, ξ) of a task of the library with one ξ for all steps; ∂f where it has no noise."""
    return lambda X: task.losses_and_gradients(X, range(task.nodes), 0)[1]


def sampled(task, seed: int) -> Gradients:
    """∂F(·, ξ) of Valleys or Troughs, with another ξ at every call; ∂f if there is no seed, −1."""
    if seed < 0:
        return task.full
    random = torch.Generator().manual_seed(seed)
    return lambda X: task.full(X) + torch.randint(0, 2, (len(X), 1), generator=random).double().mul(2).sub(1) * task.r


class Bowls:
    """F_i(x, ξ_i) = ½ (h_i + s_i ξ_i) ‖x‖² + ⟨c_i + r_i ξ_i, x⟩ with ξ_i = ±1, each half of the time, independently.

    f_i has curvature h_i; F_i(·, ξ) is convex if h_i ≥ |s_i|, and L-smooth with L = max_i |h_i| + |s_i|.
    """

    def __init__(self, h: torch.Tensor, c: torch.Tensor, s: torch.Tensor | None = None, r: torch.Tensor | None = None):
        self.h, self.c = h, c  # (n, 1), (n, d)
        self.s = torch.zeros_like(h) if s is None else s  # (n, 1)
        self.r = torch.zeros_like(c) if r is None else r  # (n, d)
        self.L = float((self.h.abs() + self.s.abs()).max())
        self.optimum = -c.mean(0) / h.mean()  # (d,)

    @classmethod
    def random(cls, n: int, d: int, seed: int, noisy: bool = True) -> "Bowls":
        """Convex, with curvatures and noise that differ between the nodes."""
        random = torch.Generator().manual_seed(seed)
        h = 0.2 + torch.rand(n, 1, generator=random, dtype=torch.float64)
        s = h * torch.rand(n, 1, generator=random, dtype=torch.float64)
        c, r = torch.randn(2, n, d, generator=random, dtype=torch.float64)
        return cls(h, c, s, r) if noisy else cls(h, c)

    def full(self, X: torch.Tensor) -> torch.Tensor:
        """∂f(X); one point (d,) stands for the same point on all nodes."""
        return self.h * X + self.c

    def noise(self, X: torch.Tensor) -> torch.Tensor:
        """∂F(X, 𝟏) − ∂f(X): node i's noise is ± row i."""
        return self.s * X + self.r

    def variance(self, x: torch.Tensor) -> float:
        """σ² at x: (1/n) Σ E‖∇F_i(x, ξ_i) − ∇f_i(x)‖²."""
        return float(self.noise(x).square().sum(1).mean())

    def excess(self, x: torch.Tensor) -> float:
        """f(x) − f*."""
        return float(self.h.mean() / 2 * (x - self.optimum).square().sum())

    def outcomes(self) -> Iterator[Gradients]:
        """∂F(·, ξ) for each ξ."""
        return outcomes(self.full, self.noise, len(self.h))


class Valleys:
    """F_i(x, ξ_i) = (1 + α_i) Σ_j log(1 + x_j²) + ⟨c_i + r_i ξ_i, x⟩ with ξ_i = ±1, Σ α_i = 0 and Σ c_i = 0.

    Not convex; f* = 0 at x = 0. The gradients of f_i at one point x deviate from their mean by α_i ∇f(x) + c_i: a
    part that grows with the gradient of f, and a constant part. The second derivative of log(1 + x²),
    2 (1 − x²) / (1 + x²)², lies in [−1/4, 2], so L = 2 max_i |1 + α_i|.
    """

    def __init__(self, alpha: torch.Tensor, c: torch.Tensor, r: torch.Tensor | None = None) -> None:
        self.alpha, self.c = alpha - alpha.mean(), c - c.mean(0)  # (n, 1), (n, d)
        self.r = torch.zeros_like(c) if r is None else r  # (n, d)
        self.L = 2 * float((1 + self.alpha).abs().max())

    @classmethod
    def random(cls, n: int, d: int, seed: int, growth: float = 0.8, constant: float = 1.0) -> "Valleys":
        """With noise, and with deviations of these sizes."""
        random = torch.Generator().manual_seed(seed)
        alpha = growth * (torch.rand(n, 1, generator=random, dtype=torch.float64) - 0.5)
        c, r = torch.randn(2, n, d, generator=random, dtype=torch.float64)
        return cls(alpha, constant * c, r)

    @property
    def variance(self) -> float:
        """σ²: (1/n) Σ E‖∇F_i(x, ξ_i) − ∇f_i(x)‖², the same at every x."""
        return float(self.r.square().sum(1).mean())

    @staticmethod
    def value(x: torch.Tensor) -> float:
        """f(x) = f(x) − f*."""
        return float(torch.log1p(x.square()).sum())

    @staticmethod
    def gradient(x: torch.Tensor) -> torch.Tensor:
        """∇f at each row."""
        return 2 * x / (1 + x.square())

    def full(self, X: torch.Tensor) -> torch.Tensor:
        """∂f(X)."""
        return (1 + self.alpha) * self.gradient(X) + self.c

    def outcomes(self) -> Iterator[Gradients]:
        """∂F(·, ξ) for each ξ."""
        return outcomes(self.full, lambda X: self.r, len(self.c))
