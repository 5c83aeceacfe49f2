"""The rows that an algorithm announces, from which aware policies choose weights, are the rows that it mixes."""

import pytest
import torch

import mixwise.algorithms as alg
from mixwise.graphs import random_connected
from mixwise.mixing import lazy_metropolis_hastings
from mixwise.network import SimulatedNetwork
from mixwise.policies import Fixed
from mixwise.tasks import random_quadratics
from mixwise.training import Training


class Recording(SimulatedNetwork):
    """Keeps the rows of the last call of `mix` or, of several in a step, of the first."""

    sent = None

    def mix(self, rows, W, **options):
        self.sent = rows.clone() if self.sent is None else self.sent
        return super().mix(rows, W, **options)


@pytest.mark.parametrize(
    "algorithm",
    [alg.D2(), alg.EXTRA(), alg.ACiD(), alg.QuasiGlobalMomentum(), alg.QuasiGlobalMomentum(inner=alg.D2())],
    ids=str,
)
def test_the_announced_rows_are_mixed(algorithm):
    network = Recording(random_connected(7, 0.5, seed=3))
    policy, sgd = Fixed(lazy_metropolis_hastings), lambda rows: torch.optim.SGD(rows, lr=0.005)
    training = Training(random_quadratics(7), network, policy, algorithm, sgd)
    driver, mix = training.driver, training.driver.mix

    def compare(round, plan):
        announced = algorithm.rows_to_mix(round, driver.algorithm_state).clone()
        before, after = (rows.clone() for rows in algorithm.update(round, driver.algorithm_state))
        if not isinstance(algorithm, alg.EXTRA | alg.ACiD):  # of these the update is not mixed as it is
            torch.testing.assert_close(round.before - announced, before - after, rtol=0, atol=1e-12)
        network.sent = None
        mix(round, plan)
        torch.testing.assert_close(network.sent, announced, rtol=0, atol=1e-12)

    driver.mix = compare
    for _ in range(4):
        training.step()
