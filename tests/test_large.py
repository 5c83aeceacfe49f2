"""The path of a large run at 20,000 nodes, in a process that has no room for an n × n array, which takes 3.2 GB."""

import subprocess
import sys

ROOM = 2 * 10**9  # bytes that may be allocated; an array of n × n bytes (0.4 GB) fits, one of n × n numbers does not

PROGRAM = f"""
import json, resource, sys, tempfile
from pathlib import Path
import numpy as np, torch
import networkx, scipy.sparse.csgraph, scipy.sparse.linalg
import mixwise as mw
from mixwise import experiments
from mixwise.graphs import edge_coloring, parse, random_matching, spanning_tree
from mixwise.network import Faults, FaultyNetwork, SimulatedNetwork
from mixwise.protocols import Algorithm, Context, Round
from mixwise.experiments.build import prepare
from mixwise.training.run_log import open_logs
from mixwise.training.checkpoint import load_checkpoint, save_checkpoint

torch.set_num_threads(1)
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
rounds(mw.policies.HeterogeneityAware(solver="local", tolerance=0.5, max_iterations=2), torus, network)
lossy = FaultyNetwork(SimulatedNetwork(world), Faults(message_loss=0.1))
rounds(mw.policies.AwarePairs(1, offers=2), world, lossy)
mw.policies.forecast("metropolis-hastings", torus, 100, mixings=2)

options = ["nodes=20000", "steps=1", "variants=mixture-auto", "task.data.test_share=0.1"]
(config,) = experiments.plan_experiment(experiments.load_recipe("large"), options).runs.values()
prepared = prepare(config, 0)
training = prepared.start()
(record,) = prepared.records_of(training)
assert record.values["disagreement_median"] < record.values["disagreement_largest"]
with tempfile.TemporaryDirectory() as folder:
    open_logs(Path(folder), prepared.scene(training), training.network.graph)
    scene = json.loads((Path(folder) / "scene.json").read_text())
    assert scene["n"] == len(scene["counts"]) == 60
    assert scene["degrees"] == [0, 0, 0, 0, 20_000]
    save_checkpoint(training, Path(folder) / "checkpoint")
    load_checkpoint(training, Path(folder) / "checkpoint")
print("done")
"""


def test_no_array_of_all_pairs_of_nodes_is_made():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.endswith("done\n")
