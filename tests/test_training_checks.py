"""Wrong combinations are refused before the first step, with the value, the rule and the remedy; fused optimizers do
what the others do, or are refused; buffers go the way of the parameters."""

import numpy as np
import pytest
import torch
from torch import nn

from mixwise.algorithms import (
    D2,
    DSGD,
    EXTRA,
    AllReduceSGD,
    CombineThenAdapt,
    CombineWhileAdapt,
    DAdam,
    DecentLaM,
    GradientTracking,
    LocalSGD,
    PushSum,
    QuasiGlobalAdam,
    QuasiGlobalMomentum,
    RelaySGD,
)
from mixwise.data import gaussian_mixture, partition
from mixwise.errors import ConfigError, GraphError, MixingError, MixwiseError, TrainingError
from mixwise.graphs import Graph, chain, complete, ring
from mixwise.mixing import MixingMatrix, base_graph, lazy, metropolis_hastings, uniform_sender
from mixwise.models import seeded
from mixwise.network import SimulatedNetwork
from mixwise.plan import Plan
from mixwise.policies import (
    Alternating,
    Cycle,
    Fixed,
    HeterogeneityAware,
    LearnedTopology,
    Matchings,
    NoMixing,
    Product,
    Tree,
)
from mixwise.round import Round
from mixwise.state import State
from mixwise.tasks import ModuleTask, QuadraticTask, random_quadratics
from mixwise.training import Training
from mixwise.training.checks import check_connected
from mixwise.training.optimizers import fuse_where_safe

N = 6
GRAPH = ring(N)
MH = metropolis_hastings(GRAPH)


def sgd(**options):
    return lambda blocks: torch.optim.SGD(blocks, lr=0.01, **options)


def adam(**options):
    return lambda blocks: torch.optim.Adam(blocks, lr=0.01, **options)


def make(algorithm, policy=None, optimizer=None, graph=GRAPH, *, the_task=None, **options):
    return Training(
        the_task or random_quadratics(graph.n, dim=4),
        SimulatedNetwork(graph),
        policy or Fixed(lazy(MH)),
        algorithm,
        optimizer or sgd(),
        **options,
    )


class OnlyChecked(QuadraticTask):
    """A task that fails when a gradient is asked for: nothing may happen before the checks."""

    def losses_and_gradients(self, X, nodes, step):
        raise AssertionError("a step was taken")


def only_checked(n=N):
    task = random_quadratics(n, dim=4)
    return OnlyChecked(task.A, task.b)


# --- optimizers that do not fit ---
@pytest.mark.parametrize(
    ("algorithm", "optimizer", "message"),
    [
        (QuasiGlobalMomentum, sgd(momentum=0.9), r"QuasiGlobalMomentum has its own momentum, so SGD with momentum"),
        (QuasiGlobalMomentum, adam(), r"so Adam would count it twice; use SGD with momentum 0 as the optimizer"),
        (QuasiGlobalAdam, sgd(momentum=0.5), "QuasiGlobalAdam has its own momentum, so SGD with momentum"),
        (QuasiGlobalAdam, adam(), "so Adam would count it twice"),
        (DecentLaM, sgd(momentum=0.1), "DecentLaM has its own momentum, so SGD with momentum"),
        (DecentLaM, adam(), "use SGD with momentum 0"),
        (lambda: QuasiGlobalMomentum(inner=RelaySGD()), sgd(momentum=0.9), "count it twice"),
        (DAdam, sgd(), r"DAdam with SGD is not DAdam; use Adam or AdamW, or algorithm: dsgd"),
        (DAdam, lambda b: torch.optim.RMSprop(b), "DAdam with RMSprop"),
    ],
)
def test_an_optimizer_that_the_method_is_not_defined_for(algorithm, optimizer, message):
    with pytest.raises(TrainingError, match=message):
        make(algorithm(), optimizer=optimizer, the_task=only_checked())


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
def test_dadam_takes_both_adams(optimizer):
    make(DAdam(), optimizer=lambda b: optimizer(b, lr=0.01)).step()


@pytest.mark.parametrize(
    "inner", [QuasiGlobalMomentum, QuasiGlobalAdam, DecentLaM], ids=["momentum", "adam", "decentlam"]
)
@pytest.mark.parametrize("outer", [QuasiGlobalMomentum, QuasiGlobalAdam])
def test_a_momentum_around_a_momentum(outer, inner):
    with pytest.raises(TrainingError, match=rf"{inner.__name__} has a momentum of its own; use one of the two"):
        outer(inner=inner())


def test_a_momentum_around_a_method_that_needs_another_optimizer():
    for optimizer in (sgd(), adam()):
        with pytest.raises(TrainingError, match="DAdam needs Adam"):
            make(QuasiGlobalMomentum(inner=DAdam()), optimizer=optimizer, the_task=only_checked())


def test_a_momentum_in_one_of_two_groups_is_found():
    def groups(blocks):
        return torch.optim.SGD([{"params": [blocks[0]]}, {"params": [blocks[1]], "momentum": 0.9}], lr=0.1)

    with pytest.raises(TrainingError, match="count it twice"):
        make(DecentLaM(), optimizer=groups, the_task=two_blocks())


def test_quasi_global_momentum_needs_one_step_size():
    """It divides the movement of all columns by it."""

    def groups(blocks):
        return torch.optim.SGD([{"params": [blocks[0]]}, {"params": [blocks[1]], "lr": 0.2}], lr=0.1)

    with pytest.raises(TrainingError, match=r"lr = 0\.1, 0\.2; use the same for all groups"):
        make(QuasiGlobalMomentum(), optimizer=groups, the_task=two_blocks())
    make(DecentLaM(), optimizer=groups, the_task=two_blocks())  # there the step size cancels


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: QuasiGlobalMomentum(1.0), r"beta = 1\.0: input should be less than 1"),
        (lambda: QuasiGlobalMomentum(0.9, mu=-0.1), r"mu = -0\.1"),
        (lambda: QuasiGlobalMomentum(float("nan")), "beta = nan"),
        (lambda: QuasiGlobalAdam((0.9, 1.0)), r"betas\.1 = 1\.0"),
        (lambda: DecentLaM(1.2), r"beta = 1\.2: input should be less than 1"),
    ],
)
def test_momenta_out_of_range(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


@pytest.mark.parametrize("tau", [2, 5])
def test_all_reduce_has_no_local_steps(tau):
    with pytest.raises(TrainingError, match=rf"local_steps = {tau} has no meaning; .*algorithm: local-sgd"):
        make(AllReduceSGD(), NoMixing(), the_task=only_checked(), local_steps=tau)
    with pytest.raises(TrainingError, match="has no meaning"):
        make(QuasiGlobalMomentum(inner=AllReduceSGD()), NoMixing(), the_task=only_checked(), local_steps=tau)


@pytest.mark.parametrize("tau", [0, -3])
def test_there_is_at_least_one_local_step(tau):
    with pytest.raises(TrainingError, match=f"local_steps = {tau}; give a whole number of at least 1"):
        make(DSGD(), local_steps=tau)


# --- graphs that fall apart ---
TWO_CHAINS = Graph(N, [(0, 1), (1, 2), (3, 4), (4, 5)])


@pytest.mark.parametrize(
    ("graph", "algorithm", "policy"),
    [
        (TWO_CHAINS, DSGD(), Fixed(metropolis_hastings(TWO_CHAINS))),
        (TWO_CHAINS, DSGD(), HeterogeneityAware()),
        (TWO_CHAINS, DSGD(), Matchings()),
        (TWO_CHAINS, D2(), Fixed(lazy(metropolis_hastings(TWO_CHAINS)))),
        (Graph(N, [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (0, 3)], directed=True), PushSum(), None),
    ],
)
def test_nodes_that_never_hear_of_each_other_are_refused(graph, algorithm, policy):
    with pytest.raises(GraphError, match=r"2 components, nodes 0-2 \| 3-5, that .*; use a connected graph, or"):
        Training(
            only_checked(), SimulatedNetwork(graph), policy or Fixed(uniform_sender(graph)), algorithm,
            lambda rows: torch.optim.SGD(rows, lr=0.1),
        )  # fmt: skip


def test_many_components_are_not_all_listed():
    with pytest.raises(GraphError, match=r"the graph has 6 components, nodes 0 \| 1 \| 2 \| 3 \| …, that"):
        check_connected(Graph(6, []))


@pytest.mark.parametrize(
    ("graph", "algorithm", "policy"),
    [
        (TWO_CHAINS, AllReduceSGD(), NoMixing()),  # they average over all nodes, whatever the graph
        (TWO_CHAINS, LocalSGD(), NoMixing()),
        (GRAPH, DSGD(), Matchings()),  # each of them falls apart, not the graph
        (GRAPH, DSGD(), Cycle(base_graph(N, 1))),
        (TWO_CHAINS, DSGD(), Cycle(base_graph(N, 1))),  # uses edges of its own
        (TWO_CHAINS, DSGD(), Fixed(MH)),
        (TWO_CHAINS, DSGD(), LearnedTopology(2, "updates")),
    ],
)
def test_what_is_connected_over_time_is_enough(graph, algorithm, policy):
    task = random_quadratics(N, dim=3)
    training = Training(task, SimulatedNetwork(graph), policy, algorithm, lambda rows: torch.optim.SGD(rows, lr=0.001))
    training.step()


# --- weights that do not fit ---
UNSTABLE = metropolis_hastings(ring(8))  # eigenvalue −1/3


@pytest.mark.parametrize(
    "policy",
    [
        Fixed(UNSTABLE),
        Alternating([Fixed(lazy(UNSTABLE)), Fixed(UNSTABLE)]),
        HeterogeneityAware(alternate_with=UNSTABLE),
    ],
    ids=["fixed", "alternating", "alternate_with"],
)
@pytest.mark.parametrize("algorithm", [D2, lambda: QuasiGlobalMomentum(inner=D2())], ids=["d2", "qg around d2"])
def test_d2_refuses_an_unstable_matrix_wherever_it_stands(policy, algorithm):
    with pytest.raises(MixwiseError, match=r"D² is not stable with this W: its eigenvalue -0\.3333.*lazy\(symmetrized"):
        make(algorithm(), policy, graph=ring(8), the_task=only_checked(8))


def test_extra_refuses_a_matrix_whose_roots_leave_the_disc():
    """A one-way ring: its complex eigenvalues turn faster than the memory forgets."""
    one_way = Graph(8, [(i, (i + 1) % 8) for i in range(8)], directed=True)
    weights = MixingMatrix.from_dense(0.5 * np.eye(8) + 0.5 * np.roll(np.eye(8), 1, axis=1), one_way)
    values = np.linalg.eigvals(weights.to_dense())
    values = values[abs(values - 1) > 1e-9]
    worst = max(abs(np.roots([1, -(1 + v), (1 + v) / 2])).max() for v in values)
    assert worst > 1
    with pytest.raises(MixwiseError, match=rf"EXTRA is not stable.*modulus {worst:.4g}.*use symmetrized\(W\)"):
        make(EXTRA(), Fixed(weights), graph=one_way, the_task=only_checked(8))


@pytest.mark.parametrize("n", [4, 8, 9])
def test_extra_takes_metropolis_hastings_where_d2_does_not(n):
    """Symmetric W with eigenvalues above −1: the product of the roots, (1 + λ)/2, is below 1."""
    make(EXTRA(), Fixed(metropolis_hastings(ring(n))), graph=ring(n)).step()


@pytest.mark.parametrize(
    "algorithm",
    [DSGD, CombineThenAdapt, CombineWhileAdapt, D2, EXTRA, GradientTracking, DecentLaM, QuasiGlobalMomentum],
)
def test_weights_that_move_the_mean_are_for_push_sum_alone(algorithm):
    sender = Fixed(uniform_sender(Graph(N, [*chain(N).edges, (0, 3)])))
    with pytest.raises(TrainingError, match=r'kind="sender", so mixing would move the mean.*push-sum'):
        make(algorithm(), sender, the_task=only_checked())
    make(PushSum(), sender).step()
    make(QuasiGlobalMomentum(inner=PushSum()), sender).step()


@pytest.mark.parametrize("algorithm", [D2, EXTRA])
def test_two_rounds_are_refused_where_one_matrix_is_needed(algorithm):
    training = make(algorithm(), Product([Fixed(lazy(MH)), Fixed(lazy(MH))]))
    with pytest.raises(MixingError, match="in one round with one matrix; use a policy with one matrix per mixing"):
        training.step()


# --- trees ---
@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (ring(5), r"5 edges on 5 nodes contain a cycle.*use a spanning tree"),
        (Graph(5, [(0, 1), (2, 3)]), r"the tree has 3 components.*spanning_tree\(graph\)"),
        (Graph(4, [(0, 1), (1, 2), (2, 0)]), "the tree has 2 components"),
        (Graph(3, [(0, 1), (1, 2)], directed=True), "a tree to relay along is undirected"),
    ],
)
def test_what_is_no_tree(graph, message):
    with pytest.raises(GraphError, match=message):
        Tree(graph)


def test_relay_needs_a_tree_of_its_graph():
    with pytest.raises(TrainingError, match=r"the policy provides weights.*provides a spanning tree"):
        make(RelaySGD())
    with pytest.raises(TrainingError, match=r"the tree has 4 nodes, the graph 6"):
        make(RelaySGD(), Tree(chain(4))).step()
    across = Graph(N, [(0, 1), (1, 2), (2, 3), (3, 4), (2, 5)])
    with pytest.raises(TrainingError, match=r"relays along \(2, 5\), which is no edge of the graph"):
        make(RelaySGD(), Tree(across)).step()
    make(RelaySGD(), Tree(chain(N))).step()


@pytest.mark.parametrize("algorithm", [DSGD, GradientTracking, DecentLaM, PushSum, CombineWhileAdapt])
def test_a_tree_is_for_relay_alone(algorithm):
    with pytest.raises(TrainingError, match="provides a tree, the algorithm mixes with weights; use weights"):
        make(algorithm(), Tree(chain(N)))


def test_push_sum_names_the_node_that_has_nothing_left():
    """Everything node 0 has goes to node 1, and nothing comes back."""
    weights = MixingMatrix.from_dense([[0.0, 1.0], [0.0, 1.0]], kind="sender")
    training = make(PushSum(), Fixed(weights), graph=complete(2))
    with pytest.raises(TrainingError, match="node 0 has pushed all of its mass away; keep a positive weight"):
        training.step()


# --- fused optimizers ---
def two_blocks():
    data = gaussian_mixture(classes=3, dim=4, samples=60)
    parts = partition.dirichlet(data.train.y, N, 1.0, seed=0)
    return ModuleTask(
        lambda: seeded(lambda: nn.Linear(4, 3), 0),
        data.train,
        parts,
        batch=4,
        group_of=lambda name, parameter: int(parameter.ndim < 2),
        dtype=torch.float32,
    )


FUSED = [
    ("SGD", {"lr": 0.01}),
    ("SGD", {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.01, "momentum": 0.9, "dampening": 0.3}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.01, "amsgrad": True}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    ("Adagrad", {"lr": 0.01}),
]
each_fused = pytest.mark.parametrize(("name", "options"), FUSED)


def optimizer(name, **options):
    return lambda blocks: getattr(torch.optim, name)(blocks, **options)


class InPieces(QuadraticTask):
    """Its gradients are a transposed view: the rows of G do not lie one after the other in memory."""

    def losses_and_gradients(self, X, nodes, step):
        losses, G = super().losses_and_gradients(X, nodes, step)
        return losses, G.T.contiguous().T


def pieces():
    task = random_quadratics(N, dim=9, noise=0.2)
    return InPieces(task.A, task.b, task.noise)


@each_fused
@pytest.mark.parametrize("kind", [lambda: random_quadratics(N, dim=9, noise=0.2), pieces], ids=["whole", "in pieces"])
def test_fused_optimizers_do_what_the_others_do(name, options, kind):
    fused = make(DSGD(), optimizer=optimizer(name, **options, fused=True), the_task=kind())
    plain = make(DSGD(), optimizer=optimizer(name, **options), the_task=kind())
    assert not plain.optimizer.param_groups[0]["fused"]  # not chosen: the digits of float64 rows know only their row
    for _ in range(20):
        fused.step()
        plain.step()
    torch.testing.assert_close(fused.X, plain.X, rtol=0, atol=1e-12)


@each_fused
def test_rows_in_one_block_are_fused_unless_they_are_in_double_precision(name, options):
    for dtype, chosen in ((torch.float32, True), (torch.float64, None)):
        rows = [nn.Parameter(torch.zeros(3, 5, dtype=dtype))]
        assert fuse_where_safe(optimizer(name, **options)(rows)).param_groups[0]["fused"] is chosen


@each_fused
def test_several_blocks_of_columns_are_not_fused(name, options):
    """On them the fused kernels would change the wrong entries."""
    free = make(DSGD(), optimizer=optimizer(name, **options), the_task=two_blocks())
    plain = make(DSGD(), optimizer=optimizer(name, **options, foreach=False, fused=False), the_task=two_blocks())
    assert not any(group["fused"] for group in free.optimizer.param_groups)
    assert len(free.optimizer.param_groups[0]["params"]) == 2
    for _ in range(5):
        free.step()
        plain.step()
    torch.testing.assert_close(free.X, plain.X, rtol=0, atol=1e-6)
    with pytest.raises(TrainingError, match=r"fused=True does not work on one of several blocks.*leave it out"):
        make(DSGD(), optimizer=optimizer(name, **options, fused=True), the_task=two_blocks())


def test_what_the_caller_has_chosen_stays():
    for choice in ({"foreach": True}, {"fused": False}, {"differentiable": True}):
        group = make(DSGD(), optimizer=sgd(**choice)).optimizer.param_groups[0]
        assert not group["fused"]


# --- buffers go the way of the parameters ---
def with_batch_norm(buffers="averaged"):
    data = gaussian_mixture(classes=3, dim=4, samples=120)
    parts = partition.dirichlet(data.train.y, N, 0.5, seed=0)
    module = lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))  # noqa: E731
    return ModuleTask(lambda: seeded(module, 0), data.train, parts, batch=6, buffers=buffers, dtype=torch.float64)


def local_buffers():
    """B after one step of every node by itself: the first step is the same whatever is mixed afterwards."""
    task = with_batch_norm("local")
    training = make(DSGD(), the_task=task)
    training.step()
    return task._buffers(training.X).B.clone()


def mixed_buffers(algorithm, policy, graph=GRAPH, steps=1):
    task = with_batch_norm()
    training = make(algorithm, policy, graph=graph, the_task=task)
    for _ in range(steps):
        training.step()
    return task.mixed_buffers.clone()


def test_buffers_are_mixed_averaged_or_pushed_as_the_parameters_are():
    B = local_buffers()
    assert float((B - B.mean(0)).abs().max()) > 1e-3
    weights = torch.from_numpy(MH.to_dense().T)
    for algorithm in (DSGD(), GradientTracking(), QuasiGlobalMomentum()):
        torch.testing.assert_close(mixed_buffers(algorithm, Fixed(MH)), weights @ B, rtol=0, atol=1e-12)
    early = mixed_buffers(CombineWhileAdapt(), Fixed(MH))  # its first mixing has no weights yet
    torch.testing.assert_close(early, B, rtol=0, atol=1e-12)
    for algorithm in (AllReduceSGD(), LocalSGD(), QuasiGlobalMomentum(inner=LocalSGD())):
        averaged = mixed_buffers(algorithm, NoMixing())
        torch.testing.assert_close(averaged, B.mean(0).expand_as(B), rtol=0, atol=1e-12)
    sender = uniform_sender(Graph(N, [*GRAPH.edges, (0, 2), (0, 3)]))
    P = torch.from_numpy(sender.to_dense().T)
    pushed = mixed_buffers(PushSum(), Fixed(sender), sender.graph)
    torch.testing.assert_close(pushed, P @ B / P.sum(1, keepdim=True), rtol=0, atol=1e-12)


def test_buffers_are_pushed_with_the_weights_of_their_nodes():
    """B⁺ = P (w B) / (P w): what all nodes have together, Σ w B, stays."""
    sender = uniform_sender(Graph(N, [*GRAPH.edges, (0, 2), (0, 3)]))
    P, w = sender.to_dense().T, np.linspace(0.4, 1.6, N)[:, None]
    B = torch.randn(N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    state, before, X = State(rows={"mass": torch.from_numpy(w)}), B.numpy().copy(), torch.zeros(N, 2)
    PushSum().mix(Round(0, X, X, X, B=B), Plan((sender,)), state, SimulatedNetwork(sender.graph))
    np.testing.assert_allclose(B.numpy(), P @ (w * before) / (P @ w), rtol=0, atol=1e-12)


def test_statistics_stay_in_range_when_they_are_pushed():
    """Mixed by weights whose columns do not sum to 1, without the division, they would drain away on some nodes."""
    sender = uniform_sender(Graph(N, [*GRAPH.edges, (0, 2), (0, 3)]))
    B = mixed_buffers(PushSum(), Fixed(sender), sender.graph, steps=60)
    usual = mixed_buffers(DSGD(), Fixed(MH), steps=60)
    assert float((B - usual.mean(0)).norm()) < 0.5 * float(usual.mean(0).norm() * len(B) ** 0.5)


def test_relay_refuses_buffers_that_are_to_be_averaged():
    for algorithm in (RelaySGD(), QuasiGlobalMomentum(inner=RelaySGD())):
        with pytest.raises(
            TrainingError, match=r"(RelaySGD|Momentum) has no mixing weights for the nodes' buffers.*buffers: local"
        ):
            make(algorithm, Tree(chain(N)), the_task=with_batch_norm())
    make(RelaySGD(), Tree(chain(N)), the_task=with_batch_norm("local")).step()
    make(RelaySGD(), Tree(chain(N)), graph=complete(N)).step()
