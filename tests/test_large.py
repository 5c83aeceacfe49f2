"""The path of a large run at 20,000 nodes, in a process that has no room for an n × n array, which takes 3.2 GB."""

import subprocess
import sys

ROOM = 2 * 10**9  # bytes that may be allocated; an array of n × n bytes (0.4 GB) fits, one of n × n numbers does not

PROGRAM = f"""
import resource, sys, tempfile
import numpy as np, torch
import networkx, scipy.sparse.csgraph, scipy.sparse.linalg, sklearn.datasets
import mixwise as mw
from mixwise import experiments
from mixwise.graphs import edge_coloring, parse, random_matching, spanning_tree
from mixwise.network import Faults, FaultyNetwork, SimulatedNetwork
from mixwise.protocols import Algorithm, Context, Round
from mixwise.training import Training

taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + {ROOM}, -1))
try:
    np.ones((20_000, 20_000))
    sys.exit("there is room for an n × n array")
except MemoryError:
    pass

def rounds(policy, graph, network):
    X = torch.randn(graph.n, 5)
    state = policy.init(Context(graph))
    plan = policy.plan(Round(0, X, X, X + 1, algorithm=Algorithm()), state, network)
    for W in plan.params:
        network.mix(X, W, out=X)
        assert W.is_symmetric or not W.whole or isinstance(policy, mw.policies.HeterogeneityAware)

torus, world = parse("torus:100x200"), parse("small-world:20000", seed=1)
network = SimulatedNetwork(torus)
for policy in (mw.policies.Auto(), mw.policies.EdgeColoring(), mw.policies.Fixed(mw.mixing.metropolis_hastings)):
    rounds(policy, torus, network)
assert hash(torus) == hash(torus.permuted(range(torus.n)))
assert len(edge_coloring(parse("ring:20000"))) == 2
assert len(spanning_tree(torus).edge_array) == torus.n - 1
random_matching(world)
rounds(mw.policies.HeterogeneityAware(solver="local", tolerance=0.5, max_iterations=10), torus, network)
lossy = FaultyNetwork(SimulatedNetwork(world), Faults(message_loss=0.1))
rounds(mw.policies.AwarePairs(1, offers=2), world, lossy)
mw.policies.forecast("metropolis-hastings", torus, 100, mixings=2)

recipe = experiments.load_recipe("large")
options = ["nodes=20000", "steps=2", "record_every=1", "evaluate_every=2", "variants=auto", "graph=random-regular"]
with tempfile.TemporaryDirectory() as folder:
    from pathlib import Path
    experiments.run_experiment(experiments.plan_experiment(recipe, options), Path(folder) / "run")
    page = (Path(folder) / "run" / "report.html").read_text()
    assert len(page) < 1_000_000 and "disagreement_median" in page and '"of":20000' in page
print("done")
"""


def test_no_array_of_all_pairs_of_nodes_is_made():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.endswith("done\n")
