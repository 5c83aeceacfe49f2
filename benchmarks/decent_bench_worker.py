"""Steps of decent-bench for benchmarks/quadratics.py: as many as each line of the input asks for, CPU seconds printed.

It imports neither mixwise nor PyTorch, so that it runs in any interpreter that has decent-bench.
"""

import sys
import time

import networkx as nx
import numpy as np
from decent_array import interoperability as iop
from decent_bench.agents import Agent
from decent_bench.algorithms.p2p import ATC
from decent_bench.costs import QuadraticCost
from decent_bench.networks import P2PNetwork

NEVER = 10**9  # no history of the iterates


def main(inputs: str) -> None:
    data = np.load(inputs)
    A, b = data["A"], data["b"]
    iop.set_backend("numpy")  # the fastest of its back ends for small arrays
    costs = [QuadraticCost(iop.from_numpy(2 * M.T @ M), iop.from_numpy(2 * M.T @ v)) for M, v in zip(A, b, strict=True)]
    network = P2PNetwork(nx.cycle_graph(len(A)), [Agent(cost, state_snapshot_period=NEVER) for cost in costs])
    algorithm, done = ATC(step_size=float(data["lr"])), 0
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.process_time()
        algorithm.run(network, done + int(line), start_iteration=done)
        done += int(line)
        print((time.process_time() - start) / int(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
