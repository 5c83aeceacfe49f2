"""Every algorithm, with policies and optimizers that fit it, on quadratics or on a small model."""

import torch

import mixwise.algorithms as alg
import mixwise.policies as pol
from builders import sgd
from mixwise.data import gaussian_mixture, partition
from mixwise.experiments.recipe import load_recipe, plan_experiment
from mixwise.graphs import Graph, complete, random_connected, ring, spanning_tree
from mixwise.mixing import lazy, metropolis_hastings, uniform, uniform_sender
from mixwise.models import mlp, seeded
from mixwise.network import SimulatedNetwork
from mixwise.sketch import CountSketch, GaussianSketch
from mixwise.tasks import ModuleTask, random_quadratics
from mixwise.training import Training

N = 7  # of `runs`: no number of processes divides it
KNOWN_IN_PART = ("local solver", "auto")  # no process knows all weights
GRAPH = random_connected(N, 0.5, seed=3)
MH = metropolis_hastings(GRAPH)
ONE_WAY = Graph(N, [(i, (i + 1) % N) for i in range(N)] + [(0, 3), (5, 2)], directed=True)
ADAM = {"optimizer": lambda blocks: torch.optim.Adam(blocks, lr=0.01)}
NESTEROV = {"optimizer": sgd(0.005, momentum=0.9, nesterov=True)}


def aware(**options):
    return pol.HeterogeneityAware(3, sketch=GaussianSketch(5, seed=1), **options)


def runs() -> dict:
    """Runs of all kinds, made of new parts: algorithm, policy, and where they differ graph and options of Training."""
    fixed, slow, sender = pol.Fixed(MH), pol.Fixed(lazy(MH)), pol.Fixed(uniform_sender(ONE_WAY))
    relay = alg.RelaySGD(), pol.Tree(Graph(N, [(0, 3), (3, 1), (3, 6), (6, 2), (0, 5), (5, 4)])), complete(N)
    tracking, matchings = alg.GradientTracking(), pol.HeterogeneityAwareMatchings(2, sketch=CountSketch(5, seed=1))
    by_count = pol.HeterogeneityAware(2, sketch=CountSketch(5, seed=1), regularization=0.1)
    kinds = {
        "dsgd": (alg.DSGD(), fixed),
        "dsgd, momentum": (alg.DSGD(), fixed, GRAPH, NESTEROV),
        "ha-dsgd": (alg.DSGD(), aware()),
        "ha-dsgd, count sketch": (alg.DSGD(), by_count),
        "ha-dsgd, both": (alg.DSGD(), aware(objective="both")),
        "ha-dsgd, alternating": (alg.DSGD(), pol.Alternating([aware(), fixed])),
        "ha-dsgd, two rounds": (alg.DSGD(), pol.Product([aware(), fixed])),
        "ha-dsgd, local steps": (alg.DSGD(), aware(), GRAPH, {"local_steps": 3}),
        "matchings": (alg.DSGD(), pol.Matchings()),
        "aware matchings": (alg.DSGD(), matchings),
        "acid": (alg.ACiD(), matchings),
        "combine-then-adapt": (alg.CombineThenAdapt(), aware()),
        "combine-while-adapt": (alg.CombineWhileAdapt(), aware(), GRAPH, NESTEROV),
        "combine-while-adapt, two rounds": (alg.CombineWhileAdapt(), matchings),
        "decoupled": (alg.DecoupledDSGD(), pol.Decoupled(fixed, aware())),
        "d2": (alg.D2(), slow),
        "d2, aware": (alg.D2(), by_count),
        "extra": (alg.EXTRA(), fixed),
        "extra, aware": (alg.EXTRA(), by_count),
        "gradient tracking": (tracking, fixed, GRAPH, NESTEROV),
        "gradient tracking, aware": (tracking, aware()),
        "momentum tracking, aware": (alg.MomentumTracking(), aware()),
        "quasi-global": (alg.QuasiGlobalMomentum(0.9), aware()),
        "quasi-global, acid": (alg.QuasiGlobalMomentum(inner=alg.ACiD()), pol.Pairs(1)),
        "quasi-global, not Nesterov": (alg.QuasiGlobalMomentum(nesterov=False), fixed),
        "quasi-global adam": (alg.QuasiGlobalAdam(), aware()),
        "decentlam": (alg.DecentLaM(), fixed),
        "dadam": (alg.DAdam(), fixed, GRAPH, ADAM),
        "relay": (*relay, NESTEROV),
        "relay, complete graph": (alg.RelaySGD(), pol.Tree("bfs"), complete(N)),
        "push-sum": (alg.PushSum(), sender, ONE_WAY),
        "push-sum, aware": (alg.PushSum(), aware(stochastic="sender", regularization=0.2), ONE_WAY),
        "choco, top-k": (alg.Choco(alg.TopK(0.4), 0.3), fixed),
        "choco, quantized": (alg.Choco(alg.Quantize(4), 0.3), fixed, GRAPH, NESTEROV),
        "all-reduce": (alg.AllReduceSGD(), pol.NoMixing(), GRAPH, NESTEROV),
        "local sgd": (alg.LocalSGD(), pol.NoMixing(), GRAPH, {"local_steps": 2}),
    }
    learned, smooth = pol.LearnedTopology(2, "updates", observe=3), aware(smoothing=0.5, growth=1.1)
    turns = aware(alternate_with=pol.Matchings(), smoothing=0.5)
    policies = {"learned topology": learned, "smoothing": turns, "cycle": pol.Cycle([lazy(MH), MH])}
    policies |= {"random choice": pol.RandomChoice([aware(), pol.Matchings(), slow], [0.5, 0.3, 0.2])}
    policies |= {"product": pol.Product([turns, learned]), "alternating": pol.Alternating([learned, smooth])}
    policies |= {"auto": pol.Auto(), "matcha": pol.Matcha(0.5), "edge sampling": pol.EdgeSampling(0.5)}
    policies |= {"local solver": pol.HeterogeneityAware(2, solver="local", smoothing=0.5)}
    inside = {"graphs": pol.Alternating([MH, uniform(complete(N))]), "alternate_with": aware(growth=1.2)}
    kinds |= {name: (alg.DSGD(), policy) for name, policy in policies.items()}
    kinds["nested, dropping arcs"] = alg.DSGD(), aware(drop_below=0.1, **inside), complete(N)
    kinds["matchings made lazy"] = alg.D2(), pol.HeterogeneityAwareMatchings(1, objective="both")
    kinds["decoupled twice"] = alg.DecoupledDSGD(), pol.Decoupled(turns, turns)
    for name in ("relay, complete graph", "d2", "extra", "gradient tracking, aware", "choco, top-k", "push-sum"):
        kinds[f"quasi-global around {name}"] = alg.QuasiGlobalMomentum(inner=kinds[name][0]), *kinds[name][1:]
    around = alg.QuasiGlobalMomentum(inner=alg.CombineWhileAdapt()), alg.QuasiGlobalAdam(inner=alg.PushSum())
    kinds["quasi-global around combine-while-adapt"] = around[0], aware()
    kinds["quasi-global adam around push-sum"] = around[1], sender, ONE_WAY
    return {name: (*run, GRAPH, {})[:4] if len(run) < 3 else (*run, {})[:4] for name, run in kinds.items()}


def quadratic_run(name, make_network=SimulatedNetwork, dim=6, **options) -> Training:
    """One of these runs, on quadratics with noise."""
    algorithm, policy, graph, more = runs()[name]
    options = {"optimizer": sgd(), **more, **options}
    return Training(random_quadratics(N, dim=dim, noise=0.2), make_network(graph), policy, algorithm, **options)


# --- by the names in recipes ---
NODES = 8
RING = ring(NODES)
ON_RING = pol.Fixed(lazy(metropolis_hastings(RING)))
POLICIES = {
    "decoupled": lambda: pol.Decoupled(ON_RING, ON_RING),
    "relay": lambda: pol.Tree(spanning_tree(RING)),
    "choco": lambda: ON_RING,
    "all-reduce": pol.NoMixing,
    "local-sgd": pol.NoMixing,
}


def algorithm(kind: str) -> alg.Algorithm:
    base = load_recipe("quadratics")
    (config,) = plan_experiment(base, [f"algorithm={kind}", f"variants={next(iter(base.variants))}"]).runs.values()
    return config.part("algorithm")


def start(kind: str, task, **options) -> Training:
    optimizer = torch.optim.Adam if kind == "dadam" else torch.optim.SGD
    policy, make = POLICIES.get(kind, lambda: pol.HeterogeneityAware(2))(), lambda blocks: optimizer(blocks, lr=1e-3)
    return Training(task, SimulatedNetwork(RING), policy, algorithm(kind), make, **options)


def small_task(hidden: int, **options) -> ModuleTask:
    data = gaussian_mixture(classes=2, dim=30, samples=200).train
    parts = partition.iid(len(data), NODES, 0)
    module = lambda: seeded(lambda: mlp((30, hidden, 2)), 0)  # noqa: E731
    return ModuleTask(module, data, parts, batch=4, **{"gradients": "loop", **options})
