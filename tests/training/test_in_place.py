"""Methods that change rows in place return nothing: a result would be lost, and the run would train without it."""

import mixwise.algorithms as alg
from builders import cases, refused, simulated
from mixwise.errors import TrainingError
from mixwise.graphs import ring
from mixwise.mixing import metropolis_hastings

GRAPH = ring(4)
MH = metropolis_hastings(GRAPH)


class ReturnsRows(alg.DSGD):
    """Mixes into a new tensor, and forgets to write it into X′."""

    def mix(self, round, plan, state, network):
        return network.mix(round.X_prime, plan.params[0])


class ReturnsGradients(alg.DSGD):
    """Halves the gradients in a new tensor."""

    def direction(self, G, state, network):
        return G / 2


@cases(
    "algorithm, message",
    (
        ReturnsRows(),
        r"ReturnsRows.mix returned an object of type Tensor.*in place and return None: round.X_prime.copy_",
    ),
    (alg.QuasiGlobalMomentum(inner=ReturnsRows()), r"ReturnsRows.mix returned"),
    (ReturnsGradients(), r"ReturnsGradients.direction returned .*: G.copy_\(result\)"),
    (alg.QuasiGlobalMomentum(inner=ReturnsGradients()), r"ReturnsGradients.direction returned"),
)
def test_a_result_is_rejected(algorithm, message):
    training = simulated(MH, algorithm, GRAPH)
    refused(TrainingError, message, training.step)
