"""A check of a few seconds that processes on this machine can mix: two of them do it once."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import torch

from mixwise.errors import NetworkError
from mixwise.graphs import Graph
from mixwise.mixing import metropolis_hastings
from mixwise.network.addresses import free_address, gloo_interface
from mixwise.network.world import world_of_this_process

_PAIR = Graph(2, [(0, 1)])


class TwoProcesses:
    """Two processes that start on construction, so that other checks can run beside them."""

    def __init__(self, timeout: float = 30.0) -> None:
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        _, port = free_address("127.0.0.1", 0)
        self._processes = [self._start(rank, port) for rank in range(2)]

    def _start(self, rank: int, port: int) -> subprocess.Popen[str]:
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env = gloo_interface("127.0.0.1", port)
        env |= {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
        # Garbage collection would take a third of so short a life.
        code = f"import gc; gc.disable(); from mixwise.network.loopback import take_part; take_part({self.timeout})"
        return subprocess.Popen(
            [sys.executable, "-c", f"{code}; gc.freeze()"],
            env=env | {name: str(value) for name, value in told.items()} | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait(self) -> None:
        """Wait until both have mixed, or raise an error with the last line of one that has not."""
        try:
            for rank, process in enumerate(self._processes):
                try:
                    _, said = process.communicate(timeout=max(0.1, self.deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    raise NetworkError(f"process {rank} was not done after {self.timeout:g} s") from None
                if process.returncode != 0:
                    last = (said.strip().splitlines() or ["no output"])[-1]
                    raise NetworkError(f"process {rank} ended with exit code {process.returncode}: {last}")
        finally:
            self.end()

    def end(self) -> None:
        """Kill both, if they still run."""
        for process in self._processes:
            process.kill()
            process.communicate()


def take_part(timeout: float) -> None:
    """Mix 0 and 1 with weights 1/2, in each of the two processes."""
    with world_of_this_process(timeout) as world:
        mixed = world.network(_PAIR).mix(torch.full((1, 3), float(world.rank)), metropolis_hastings(_PAIR))
        if not bool((mixed == 0.5).all()):
            raise NetworkError(f"rank {world.rank} got {mixed.tolist()} for the mean of 0 and 1")
