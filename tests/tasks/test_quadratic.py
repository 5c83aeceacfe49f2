"""Quadratics: gradients are those of autograd, and optimum, smoothness and noise are as defined."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders import random_rows, refused
from mixwise.errors import TrainingError
from mixwise.seeding import generator
from mixwise.tasks import QuadraticTask, random_quadratics, two_class_quadratics

sizes = {"n": st.integers(1, 6), "d": st.integers(1, 6), "r": st.integers(1, 6), "seed": st.integers(0, 2**31)}


def any_task(n: int, d: int, r: int, seed: int, noise: float = 0.0) -> QuadraticTask:
    draws = torch.Generator().manual_seed(seed)
    A = torch.randn(n, r, d, generator=draws, dtype=torch.float64)
    return QuadraticTask(A, torch.randn(n, r, generator=draws, dtype=torch.float64), noise, seed)


def somewhere(task: QuadraticTask, seed: int = 0) -> torch.Tensor:
    return random_rows(task.nodes, task.layout.dim, seed)


# --- gradients ---
@given(**sizes)
def test_gradients_are_those_of_autograd(n, d, r, seed):
    """f_i(x) = ‖A_i x + b_i‖², written out node by node."""
    task = any_task(n, d, r, seed)
    X = somewhere(task).requires_grad_()
    losses = torch.stack([(task.A[i] @ X[i] + task.b[i]).norm() ** 2 for i in range(n)])
    losses.sum().backward()
    found_losses, found = task.losses_and_gradients(X.detach(), range(n), step=3)
    torch.testing.assert_close(found_losses, losses.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found, X.grad, rtol=1e-12, atol=1e-12)
    x = X.detach()[0]
    at_one_point = task.losses_and_gradients(x.expand(n, -1), range(n), step=0)[1]
    torch.testing.assert_close(task.full_gradients(x), at_one_point, rtol=1e-12, atol=1e-12)


@given(seed=st.integers(0, 2**31))
def test_the_mean_gradient_is_zero_at_the_optimum_only(seed):
    task = random_quadratics(5, dim=4, seed=seed)
    at_optimum = task.full_gradients(task.optimum)
    assert float(at_optimum.mean(0).norm()) <= 1e-9 * float(at_optimum.norm())
    elsewhere = task.full_gradients(task.optimum + 1).mean(0)
    assert float(elsewhere.norm()) > 1e-3


@given(**sizes)
def test_smoothness_is_the_largest_curvature_of_any_node(n, d, r, seed):
    task = any_task(n, d, r, seed)
    curvature = max(float(np.linalg.eigvalsh(2 * (a.T @ a).numpy())[-1]) for a in task.A)
    assert task.smoothness == pytest.approx(curvature, rel=1e-10)


def test_distance_to_the_optimum():
    task = random_quadratics(3, dim=2)
    X = task.optimum + torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert task.evaluate(X)["distance_to_optimum"] == pytest.approx(26 / 3)
    assert task.evaluate(task.optimum.expand(3, -1))["distance_to_optimum"] == 0


# --- noise ---
@pytest.mark.parametrize("nodes", [range(6), range(1, 5), [2], [5, 0, 3]], ids=str)
def test_the_noise_of_a_node_is_that_of_its_own_stream(nodes):
    """Thus normal with this variance, independent over nodes and steps, and the same whichever nodes are beside it."""
    task, rows = random_quadratics(6, dim=5, noise=0.3, seed=1), list(nodes)
    X = somewhere(task)
    expected, exact = QuadraticTask(task.A, task.b).losses_and_gradients(X, range(6), step=4)
    losses, G = task.losses_and_gradients(X[rows], nodes, step=4)
    draws = [torch.randn(5, generator=generator(1, "noise", node, 4), dtype=torch.float64) for node in nodes]
    torch.testing.assert_close(G, exact[rows] + 0.3**0.5 * torch.stack(draws), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(losses, expected[rows], rtol=1e-13, atol=1e-13)


def test_the_seed_decides_everything():
    def first(seed: int) -> list[torch.Tensor]:
        task = random_quadratics(3, seed=seed)
        X = task.initial(range(3))
        return [task.A, task.b, X, task.losses_and_gradients(X, range(3), 0)[1]]

    assert all(torch.equal(a, b) for a, b in zip(first(0), first(0), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first(0), first(1), strict=True))


def test_all_nodes_start_from_one_point_in_rows_of_their_own():
    task = random_quadratics(5, dim=4)
    X = task.initial(range(5))
    assert (X.shape, X.dtype) == ((5, 4), torch.float64)
    assert (X[0] == X).all()
    assert torch.equal(task.initial([3, 1]), X[:2])
    X[0] += 1
    assert not torch.equal(X[0], X[1])


# --- the paper's tasks ---
def test_random_quadratics_follow_the_paper():
    task = random_quadratics(2000)
    assert task.A.shape == (2000, 10, 10)
    assert task.noise == 0.1
    for entries in (task.A, task.b):  # N(0, 1) within 5 standard errors
        assert abs(float(entries.mean())) <= 5 / entries.numel() ** 0.5
        assert float(entries.var()) == pytest.approx(1, abs=5 * (2 / entries.numel()) ** 0.5)


def test_two_classes_have_their_optimum_at_zero():
    task = two_class_quadratics(16, dim=6, seed=2)
    assert float(task.optimum.abs().max()) <= 1e-12
    G = task.full_gradients(torch.zeros(6, dtype=torch.float64))
    torch.testing.assert_close(G[0::2], -G[1::2], rtol=1e-12, atol=1e-12)  # the classes pull in opposite directions
    assert (G[::2] == G[0]).all()
    one = torch.ones(6, dtype=torch.float64)
    assert float(task.full_gradients(one)[0].norm()) <= 1e-10  # each class has its own optimum: 𝟏 and −𝟏
    assert float(task.full_gradients(-one)[1].norm()) <= 1e-10
    assert task.noise == 0.001


def test_invalid_arguments_are_rejected():
    A, b = torch.ones(2, 3, 4), torch.ones(2, 3)
    refused(TrainingError, r"A has shape \(2, 3\) and b \(2, 3\); expected \(n, r, d\) and", QuadraticTask, b, b)
    refused(TrainingError, r"A has shape \(2, 3, 4\) and b \(2, 4\)", QuadraticTask, A, torch.ones(2, 4))
    refused(TrainingError, "A contains NaN or infinity", QuadraticTask, A * math.nan, b)
    refused(TrainingError, "b contains NaN or infinity", QuadraticTask, A, b + math.inf)
    for noise in (-0.1, math.nan, math.inf):
        refused(TrainingError, f"noise = {noise}; a variance is finite, and 0 or larger", QuadraticTask, A, b, noise)
    refused(TrainingError, "need an even number of nodes, got 5", two_class_quadratics, 5)
