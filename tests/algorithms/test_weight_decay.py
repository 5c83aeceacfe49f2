"""Weight decay is part of the stochastic gradient: decay λ is the same as the objective f + λ/2 ‖x‖², also where an
algorithm turns gradients into steps by a momentum of its own.

Legend: X, G (n, d); λ (d,), one decay per column.
"""

import pytest
import torch
from torch import nn

import mixwise as mw
from mixwise.algorithms import D2, DSGD, DecentLaM, GradientTracking, PushSum, QuasiGlobalAdam, QuasiGlobalMomentum
from mixwise.graphs import Graph, ring
from mixwise.layout import Layout
from mixwise.mixing import lazy, metropolis_hastings
from mixwise.network import SimulatedNetwork
from mixwise.policies import Fixed, HeterogeneityAware
from mixwise.tasks import Task, random_quadratics
from mixwise.training import Training

N, D, LR = 5, 6, 0.02
GRAPH = ring(N)
W = lazy(metropolis_hastings(GRAPH))
BLOCKS = [(0, 2), (2, 5), (5, 6)]
DECAYS = (0.5, 0.0, 2.0)  # one per block of columns
COLUMNS = torch.tensor([DECAYS[0]] * 2 + [DECAYS[1]] * 3 + [DECAYS[2]], dtype=torch.float64)
CLOSE = {"rtol": 1e-11, "atol": 1e-11}  # float64, and some tens of operations


class Quadratics(Task):
    """f_i(x) + λ/2 ‖x‖² with the λ of each column; its rows come as three blocks of columns."""

    nodes, layout = N, Layout(D, BLOCKS)

    def __init__(self, decays):
        self.plain, self.decays = random_quadratics(N, dim=D, noise=0.0, seed=2), decays

    def initial(self, nodes):
        return self.plain.initial(nodes)

    def losses_and_gradients(self, X, nodes, step):
        losses, G = self.plain.losses_and_gradients(X, nodes, step)
        return losses, G + self.decays * X

    def evaluate(self, X, network):
        return {}


def trained(algorithm, *, in_the_objective, policy=None, **options):
    decays = [0.0] * 3 if in_the_objective else DECAYS

    def sgd(blocks):
        groups = [{"params": [block], "weight_decay": decay} for block, decay in zip(blocks, decays, strict=True)]
        return torch.optim.SGD(groups[::-1], lr=LR)  # in another order than the columns

    task = Quadratics(COLUMNS if in_the_objective else torch.zeros(D, dtype=torch.float64))
    training = Training(task, SimulatedNetwork(GRAPH), policy or Fixed(W), algorithm, sgd, **options)
    for _ in range(12):
        training.step()
    return training.X


OWN_MOMENTUM = {
    "quasi-global": lambda: QuasiGlobalMomentum(0.8, nesterov=True),
    "quasi-global, no Nesterov": lambda: QuasiGlobalMomentum(0.8, nesterov=False),
    "quasi-global, mu": lambda: QuasiGlobalMomentum(0.8, mu=0.0, nesterov=True),
    "quasi-global around d2": lambda: QuasiGlobalMomentum(0.5, inner=D2()),
    "quasi-global around gradient tracking": lambda: QuasiGlobalMomentum(0.5, inner=GradientTracking()),
    "quasi-global adam": QuasiGlobalAdam,
    "quasi-global adam around push-sum": lambda: QuasiGlobalAdam(inner=PushSum()),
    "decentlam": lambda: DecentLaM(0.8),
    "dsgd": DSGD,
}


@pytest.mark.parametrize("options", [{}, {"local_steps": 3}], ids=["every step", "local steps"])
@pytest.mark.parametrize("name", OWN_MOMENTUM)
def test_decay_is_a_term_of_the_objective(name, options):
    """With other decays in other parameter groups, too."""
    ours = trained(OWN_MOMENTUM[name](), in_the_objective=False, **options)
    theirs = trained(OWN_MOMENTUM[name](), in_the_objective=True, **options)
    torch.testing.assert_close(ours, theirs, **CLOSE)


def test_so_it_is_for_weights_that_look_at_the_updates():
    policy = HeterogeneityAware(2, regularization=0.1)
    ours, theirs = (trained(QuasiGlobalMomentum(0.8), in_the_objective=x, policy=policy) for x in (False, True))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)  # a solver is in between


# --- in a loop of one's own ---


@pytest.mark.parametrize("name", [name for name in OWN_MOMENTUM if name.startswith("quasi-global")])
def test_gossip_decays_as_a_term_of_the_loss_does(name):
    """Several steps, two groups, and a parameter that the loss does not reach."""

    def loop(in_the_loss):
        torch.manual_seed(0)
        model = nn.ModuleDict({"used": nn.Linear(3, 2), "unused": nn.Linear(2, 1)}).double()
        decays = [(0.2, list(model["used"].parameters())), (0.7, list(model["unused"].parameters()))]
        groups = [{"params": params, "weight_decay": 0.0 if in_the_loss else decay} for decay, params in decays]
        optimizer = torch.optim.SGD(groups, lr=0.05)
        gossip = mw.Gossip(model, optimizer, Graph(1, []), Fixed(W1), algorithm=OWN_MOMENTUM[name]())
        for x in torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64):
            optimizer.zero_grad()
            loss = model["used"](x).square().mean()
            if in_the_loss:
                loss = loss + sum(decay / 2 * p.square().sum() for decay, params in decays for p in params)
            loss.backward()
            gossip.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    W1 = metropolis_hastings(Graph(1, []))
    torch.testing.assert_close(loop(False), loop(True), **CLOSE)
