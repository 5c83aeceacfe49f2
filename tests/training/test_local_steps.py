"""τ > 1 local steps between two mixings: where they lead, and runs that stop amid them.

The iterates themselves are compared with equations in tests/theory/test_matrix_forms.py.
"""

import numpy as np
import pytest
import torch

import mixwise.algorithms as alg
from builders import simulated, stepped, well_conditioned
from every_algorithm import quadratic_run, runs
from mixwise.graphs import Graph, random_connected
from mixwise.mixing import lazy, metropolis_hastings
from mixwise.policies import NoMixing, Tree
from planning import assert_runs_resume

N, D, TAU = 6, 5, 3
GRAPH = random_connected(N, keep=0.6, seed=1)
W = lazy(metropolis_hastings(GRAPH))
TREE = Graph(N, [(2, 0), (2, 4), (4, 1), (4, 5), (5, 3)])
NOISELESS = well_conditioned(N, D)


# --- where local steps lead ---
def settled(algorithm, tau, rounds, rate=0.2, policy=W, graph=GRAPH):
    training = simulated(policy, algorithm, graph, task=NOISELESS, lr=rate / NOISELESS.smoothness, local_steps=tau)
    return stepped(training, tau * rounds)


@pytest.mark.parametrize("tau", [2, 5])
def test_gradient_tracking_is_exact_with_local_steps(tau):
    training = settled(alg.GradientTracking(), tau, 250, rate=0.25 / tau)
    assert NOISELESS.evaluate(training.X)["distance_to_optimum"] < 1e-8


def local_sgd_limit(tau, rate=0.2):
    """Where the movements of τ local steps from one point cancel: Σ_i (I − (I − ηH_i)^τ)(x − x_i*) = 0."""
    eta, left, right = rate / NOISELESS.smoothness, np.zeros((D, D)), np.zeros(D)
    for A, b in zip(NOISELESS.A.numpy(), NOISELESS.b.numpy(), strict=True):
        moved = np.eye(D) - np.linalg.matrix_power(np.eye(D) - eta * 2 * A.T @ A, tau)
        left, right = left + moved, right + moved @ np.linalg.solve(A, -b)
    return np.linalg.solve(left, right)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (alg.D2, {}),
        (alg.EXTRA, {}),
        (alg.RelaySGD, {"policy": Tree(TREE), "graph": TREE}),
        (alg.LocalSGD, {"policy": NoMixing()}),
    ],
)
def test_the_other_exact_methods_end_where_local_sgd_ends(algorithm, options):
    """They make the nodes agree, and the sum of the updates 0; with τ > 1 that is not the sum of the gradients."""
    training = settled(algorithm(), 5, 200, **options)
    np.testing.assert_allclose(training.X.numpy(), np.tile(local_sgd_limit(5), (N, 1)), rtol=0, atol=1e-8)
    assert NOISELESS.evaluate(training.X)["distance_to_optimum"] > 1e-5
    np.testing.assert_allclose(local_sgd_limit(1), NOISELESS.optimum.numpy(), rtol=0, atol=1e-12)


# --- a run stops in the middle of a round and resumes bit for bit ---
def schedule(t):
    """It changes inside of a round."""
    return 0.5 + 0.05 * t if t < 17 else 0.4


@pytest.mark.parametrize(("tau", "before"), [(1, 5), (TAU, 6), (TAU, 7)])
@pytest.mark.parametrize("name", runs())
def test_a_run_may_stop_at_any_step_and_resume_bit_for_bit(name, tau, before):
    rates = lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)  # noqa: E731
    local_steps = 1 if name == "all-reduce" else tau
    assert_runs_resume(lambda: quadratic_run(name, scheduler=rates, local_steps=local_steps), before)
