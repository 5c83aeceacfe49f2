"""Wrong combinations are rejected before the first step, with the value, the rule and the remedy."""

import numpy as np
import pytest
import torch

import mixwise.algorithms as alg
import mixwise.policies as pol
from builders import cases, refused, sgd, simulated
from mixwise.errors import GraphError, MixingError, MixwiseError, TrainingError
from mixwise.graphs import Graph, chain, complete, directed_ring, ring
from mixwise.layout import Layout
from mixwise.mixing import MixingMatrix, lazy, metropolis_hastings, uniform, uniform_sender
from mixwise.needs import Needs
from mixwise.tasks import QuadraticTask, random_quadratics
from mixwise.training.checks import check_connected, check_optimizer

N = 6
GRAPH = ring(N)
MH = metropolis_hastings(GRAPH)


def adam(**options):
    return lambda blocks: torch.optim.Adam(blocks, lr=0.01, **options)


def make(algorithm, policy=None, optimizer=None, graph=GRAPH, *, the_task=None, **options):
    task = the_task or random_quadratics(graph.n, dim=4)
    return simulated(policy or lazy(MH), algorithm, graph, task=task, optimizer=optimizer or sgd(), **options)


class OnlyChecked(QuadraticTask):
    """A task that fails when a gradient is asked for: nothing may happen before the checks."""

    def losses_and_gradients(self, X, nodes, step):
        raise AssertionError("a step was taken")


def only_checked(n=N):
    task = random_quadratics(n, dim=4)
    return OnlyChecked(task.A, task.b)


def two_blocks():
    task = random_quadratics(N, dim=4)
    task.layout = Layout(4, [(0, 2), (2, 4)])
    return task


# --- optimizers that do not fit ---
OWN = [alg.QuasiGlobalMomentum, alg.QuasiGlobalAdam, alg.DecentLaM]


class PlainSteps(alg.DSGD):
    """A method of a user that has no momentum, and is not defined for other steps than those of SGD."""

    needs = Needs(optimizer="sgd")


@cases(
    "algorithm, optimizer, message",
    *(
        (method, sgd(momentum=0.1), rf"^{method.__name__} is defined for steps of plain SGD, .* is SGD with momentum;")
        for method in (*OWN, PlainSteps)
    ),
    *((method, adam(), "and the optimizer is Adam; use SGD with momentum 0$") for method in (*OWN, PlainSteps)),
    (lambda: alg.QuasiGlobalMomentum(inner=alg.RelaySGD()), sgd(momentum=0.9), "plain SGD"),
    (lambda: alg.QuasiGlobalMomentum(inner=alg.DAdam()), sgd(), "DAdam needs Adam"),
    (lambda: alg.QuasiGlobalMomentum(inner=alg.DAdam()), adam(), "DAdam needs Adam"),
    (alg.DAdam, sgd(), r"DAdam with SGD is not DAdam; use Adam or AdamW, or algorithm: dsgd"),
    (alg.DAdam, lambda b: torch.optim.RMSprop(b), "DAdam with RMSprop"),
)
def test_an_optimizer_that_the_method_is_not_defined_for(algorithm, optimizer, message):
    refused(TrainingError, message, lambda: make(algorithm(), optimizer=optimizer, the_task=only_checked()))


@pytest.mark.parametrize("options", [{"weight_decay": 1e300}, {"lr": 1e300}])
def test_a_number_that_the_dtype_of_the_rows_cannot_hold(options):
    """In float32 two groups of columns would end in an error of torch; in float64 there is room."""
    one = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2, 2))], **{"lr": 0.1} | options)
    rule = r"= 1e\+300; parameters in float32 allow numbers up to 3.4e\+38; give the optimizer a smaller one"
    refused(TrainingError, rule, check_optimizer, alg.DSGD(), one, 1)
    make(alg.DSGD(), optimizer=sgd(**options))


def test_dadam_takes_adamw():
    make(alg.DAdam(), optimizer=lambda b: torch.optim.AdamW(b, lr=0.01)).step()


@pytest.mark.parametrize(
    "inner", [alg.QuasiGlobalMomentum, alg.QuasiGlobalAdam, alg.DecentLaM], ids=["momentum", "adam", "decentlam"]
)
@pytest.mark.parametrize("outer", [alg.QuasiGlobalMomentum, alg.QuasiGlobalAdam])
def test_a_momentum_around_a_momentum(outer, inner):
    refused(TrainingError, rf"{inner.__name__} has a momentum of its own; use one of the two", outer, inner=inner())


def groups(**second):
    return lambda b: torch.optim.SGD([{"params": [b[0]]}, {"params": [b[1]], **second}], lr=0.1)


def test_a_momentum_or_another_step_size_in_one_of_two_groups_is_found():
    """Quasi-global momentum divides the movement of all columns by the step size; in DecentLaM it cancels."""
    momentum, rates = {"optimizer": groups(momentum=0.9)}, {"optimizer": groups(lr=0.2)}
    refused(TrainingError, "plain SGD", make, alg.DecentLaM(), **momentum, the_task=two_blocks())
    rule = r"lr = 0\.1, 0\.2; use the same for all groups"
    refused(TrainingError, rule, make, alg.QuasiGlobalMomentum(), **rates, the_task=two_blocks())
    make(alg.DecentLaM(), **rates, the_task=two_blocks())


@pytest.mark.parametrize("algorithm", [alg.AllReduceSGD(), alg.QuasiGlobalMomentum(inner=alg.AllReduceSGD())], ids=str)
def test_all_reduce_has_no_local_steps(algorithm):
    rule = r"local_steps = 2 has no meaning; .*algorithm: local-sgd"
    refused(TrainingError, rule, make, algorithm, pol.NoMixing(), the_task=only_checked(), local_steps=2)


# --- graphs that fall apart ---
TWO_CHAINS = Graph(N, [(0, 1), (1, 2), (3, 4), (4, 5)])


@cases(
    "graph, algorithm, policy",
    (TWO_CHAINS, alg.DSGD(), pol.Fixed(metropolis_hastings(TWO_CHAINS))),
    (TWO_CHAINS, alg.DSGD(), pol.HeterogeneityAware()),
    (TWO_CHAINS, alg.DSGD(), pol.Matchings()),
    (TWO_CHAINS, alg.DSGD(), pol.LearnedTopology(2, "updates", inside=True)),
    (TWO_CHAINS, alg.D2(), pol.Fixed(lazy(metropolis_hastings(TWO_CHAINS)))),
    (Graph(N, [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (0, 3)], directed=True), alg.PushSum(), None),
)
def test_nodes_that_never_hear_of_each_other_are_refused(graph, algorithm, policy):
    with pytest.raises(GraphError, match=r"2 components, nodes 0-2 \| 3-5, that .*; use a connected graph, or"):
        make(algorithm, policy or uniform_sender(graph), graph=graph, the_task=only_checked())


def test_many_components_are_not_all_listed():
    rule = r"the graph has 6 components, nodes 0 \| 1 \| 2 \| 3 \| …, that"
    refused(GraphError, rule, check_connected, Graph(6, []))


@cases(
    "graph, algorithm, policy",
    (TWO_CHAINS, alg.AllReduceSGD(), pol.NoMixing()),  # they average over all nodes, whatever the graph
    (TWO_CHAINS, alg.LocalSGD(), pol.NoMixing()),
    (GRAPH, alg.DSGD(), pol.Matchings()),  # each of them falls apart, not the graph
    (GRAPH, alg.DSGD(), pol.Cycle("base-graph")),
    (TWO_CHAINS, alg.DSGD(), pol.Cycle("base-graph")),  # uses edges of its own
    (TWO_CHAINS, alg.DSGD(), pol.LearnedTopology(2, "updates")),
)
def test_what_is_connected_over_time_is_enough(graph, algorithm, policy):
    make(algorithm, policy, graph=graph).step()


def test_d_cliques_use_edges_of_their_own():
    task = random_quadratics(N, dim=4)
    task.label_counts = np.eye(N, dtype=np.int64)
    make(alg.DecoupledDSGD(), pol.DCliques(size=3), graph=TWO_CHAINS, the_task=task).step()


# --- weights that do not fit ---
UNSTABLE = metropolis_hastings(ring(8))  # eigenvalue −1/3


ANYWHERE = [pol.Fixed(UNSTABLE), pol.Alternating([lazy(UNSTABLE), UNSTABLE])]
ANYWHERE += [pol.HeterogeneityAware(alternate_with=UNSTABLE)]


@pytest.mark.parametrize("policy", ANYWHERE, ids=["fixed", "alternating", "alternate_with"])
@pytest.mark.parametrize("algorithm", [alg.D2(), alg.QuasiGlobalMomentum(inner=alg.D2())], ids=["d2", "qg around d2"])
def test_d2_refuses_an_unstable_matrix_wherever_it_stands(policy, algorithm):
    with pytest.raises(MixwiseError, match=r"D² is not stable with this W: its eigenvalue -0\.3333.*lazy\(symmetrized"):
        make(algorithm, policy, graph=ring(8), the_task=only_checked(8))


def test_extra_refuses_a_matrix_whose_roots_leave_the_disc():
    """A one-way ring: its complex eigenvalues turn faster than the memory forgets."""
    weights = uniform(directed_ring(8))
    values = np.linalg.eigvals(weights.to_dense())
    worst = max(abs(np.roots([1, -(1 + v), (1 + v) / 2])).max() for v in values[abs(values - 1) > 1e-9])
    assert worst > 1
    rule = rf"EXTRA is not stable.*modulus {worst:.4g}.*use symmetrized\(W\)"
    refused(MixwiseError, rule, make, alg.EXTRA(), weights, graph=directed_ring(8), the_task=only_checked(8))


MOVES_THE_MEAN = uniform_sender(Graph(N, [*chain(N).edges, (0, 3)]))
MIX_ROWS = [alg.DSGD, alg.CombineThenAdapt, alg.CombineWhileAdapt, alg.D2, alg.EXTRA, alg.GradientTracking]
MIX_ROWS += [alg.DecentLaM, alg.QuasiGlobalMomentum, alg.Choco, alg.DecoupledDSGD]


@pytest.mark.parametrize("algorithm", MIX_ROWS)
def test_weights_that_move_the_mean_are_for_push_sum_alone(algorithm):
    policy = pol.Decoupled(MH, MOVES_THE_MEAN) if algorithm is alg.DecoupledDSGD else MOVES_THE_MEAN
    rule = r'kind="sender", so mixing would move the mean.*push-sum'
    refused(TrainingError, rule, make, algorithm(), policy, the_task=only_checked())


@pytest.mark.parametrize("algorithm", [alg.D2, alg.EXTRA])
def test_rounds_that_do_not_run_forth_and_back_are_refused_where_the_mixing_must_be_symmetric(algorithm):
    training = make(algorithm(), pol.Product([pol.Fixed(lazy(MH)), pol.Fixed(lazy(MH))]))
    refused(MixingError, r"needs a symmetric mixing, and 2 rounds .*; use a policy with one matrix", training.step)


# --- trees ---
@cases(
    "graph, message",
    (ring(5), r"1 components and 5 edges on 5 nodes is no tree to relay along; .*use spanning_tree\(graph\)"),
    (Graph(5, [(0, 1), (2, 3)]), "3 components and 2 edges on 5 nodes is no tree"),
    (Graph(3, [(0, 1), (1, 2)], directed=True), "a directed graph and 2 edges on 3 nodes is no tree"),
)
def test_what_is_no_tree(graph, message):
    refused(GraphError, message, pol.Tree, graph)


def test_relay_needs_a_tree_of_its_graph():
    refused(TrainingError, r"the policy provides weights.*provides a spanning tree", make, alg.RelaySGD())
    small, across = chain(4), Graph(N, [(0, 1), (1, 2), (2, 3), (3, 4), (2, 5)])
    rules = {small: "the tree has 4 nodes, not 6; use a spanning tree", across: r"along \(2, 5\), no edge of the graph"}
    for tree, rule in rules.items():
        refused(TrainingError, rule, make(alg.RelaySGD(), pol.Tree(tree)).step)
    make(alg.RelaySGD(), pol.Tree(chain(N))).step()


@pytest.mark.parametrize(
    "algorithm", [alg.DSGD, alg.GradientTracking, alg.DecentLaM, alg.PushSum, alg.CombineWhileAdapt]
)
def test_a_tree_is_for_relay_alone(algorithm):
    with pytest.raises(TrainingError, match="provides a tree, the algorithm mixes with weights; use weights"):
        make(algorithm(), pol.Tree(chain(N)))


def test_push_sum_names_the_node_that_has_nothing_left():
    """Everything node 0 has goes to node 1, and nothing comes back."""
    weights = MixingMatrix.from_dense([[0.0, 1.0], [0.0, 1.0]], kind="sender")
    training = make(alg.PushSum(), pol.Fixed(weights), graph=complete(2))
    refused(TrainingError, "node 0 has pushed all of its mass away; keep a positive weight", training.step)
