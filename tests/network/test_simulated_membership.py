"""Elastic runs on a virtual clock: what holds for every order of kills, stops and lost messages."""

import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from unittest.mock import patch

import pytest
import torch

from mixwise.errors import NetworkError
from mixwise.network import lighthouse as real
from mixwise.network.addresses import free_address
from mixwise.network.membership import View
from simulate_membership import GRACE, Client, Process, Simulation, Task, Time, run_seed, simulated

SEEDS = 200  # in every test run; many more were run once (docs/reliability.md)


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_no_order_of_events_breaks_a_run(first):
    """None is stuck, no mixing has two sets of members, no node has two partners, the mean is conserved."""
    for seed in range(first, first + 20):
        run_seed(seed)
    assert torch.is_grad_enabled()  # tasks share the settings of their thread, and must leave them as they were


@pytest.mark.parametrize("seed", [6, 10])  # the second with pairs, which depend on the rows
def test_a_seed_replays_exactly(seed):
    runs = []
    for draws in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(draws)  # as in another process
            runs.append(run_seed(seed))
    one, other = runs
    assert one.trace == other.trace
    assert one.now == other.now
    assert len(one.trace) > 10
    rows = [[applied.after.tolist() for ranks in run.applied.values() for applied in ranks.values()] for run in runs]
    assert rows[0] == rows[1]


def test_the_simulation_finds_a_group_whose_name_is_used_twice():
    """Without the counts, a rank that was stopped brings back the name of an earlier group."""
    with patch.object(View, "name", property(lambda view: repr([member.name for member in view.members]))):
        found = [seed for seed in range(12) if uses_a_name_twice(seed)]
    assert found


def uses_a_name_twice(seed):
    try:
        run_seed(seed)
    except AssertionError as error:
        return "used twice" in f"{error} {error.__cause__}"
    return False


class Replaced(Simulation):
    """Rank 1 is stopped; another process takes its place before it continues."""

    def fault(self):
        stopped = next(process for process in self.processes if process.rank == 1)
        stopped.stopped_until = self.now + 8.0
        self.alarm(stopped.stopped_until)
        self.at(self.now + 2.0, lambda: self.start(1))


@pytest.mark.parametrize("seed", range(4))
def test_a_process_that_was_stopped_ends_if_its_place_was_taken(seed):
    """The pause that it notices makes it the younger of the two."""
    simulation = Replaced(seed)
    simulation.loss = 0.0
    with simulated(), patch("simulate_membership.STEPS", 60):
        simulation.run()
    old, new = (process for process in simulation.processes if process.rank == 1)
    assert (old.finished, new.finished) == (False, True)
    assert sum("another process holds rank 1" in line for line in simulation.trace) == 1


# --- the same scenarios on torchft's lighthouse and on the simulated one ---
class Real:
    """torchft's lighthouse in a process, and clients in threads."""

    time = time

    def __init__(self):
        self.host, self.port = free_address("127.0.0.1", 0)
        self.start()

    def start(self):
        command = [sys.executable, real.__file__, self.host, str(self.port), str(GRACE)]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def client(self, name):
        return real.Lighthouse([f"{self.host}:{self.port}"], name, GRACE)

    def together(self, calls):
        threads = [threading.Thread(target=call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class Simulated:
    """The simulated lighthouse, whose clients are tasks."""

    time = Time

    def __init__(self, simulation):
        self.simulation = simulation
        simulation.beat()

    def start(self):
        self.simulation.lighthouse.up_from = self.simulation.now

    def kill(self):
        self.simulation.lighthouse.kill(float("inf"))

    def client(self, name):
        client = Client([], name, GRACE)
        self.simulation.processes.append(Process(0, client=client))
        return client

    def together(self, calls):
        simulation = self.simulation
        tasks = [Task(simulation, Process(0), call) for call in calls]
        simulation.tasks += tasks
        Time.sleep(0.0)
        while not all(task.done for task in tasks):
            Time.sleep(0.02)


def answered(world, clients, seconds):
    """Let these clients ask, as members do, until each was told of exactly these; return how long it took."""
    start, found = world.time.monotonic(), set()

    def ask(name):
        while len(found) < len(clients) and world.time.monotonic() < start + seconds:
            with suppress(TimeoutError, NetworkError):
                if {told["name"] for told in clients[name].ask({"name": name})} == clients.keys():
                    found.add(name)
            world.time.sleep(0.05)

    world.together([partial(ask, name) for name in clients])
    assert found == clients.keys()
    return world.time.monotonic() - start


def scenario(world, patience):
    """All are in one answer; one that is silent is left out after the grace period; a new lighthouse has all again.

    A process that gives signs of life but does not ask, since it hangs or is a stranger, does not block the others.
    """
    clients = {name: world.client(name) for name in "abc"}
    answered(world, clients, patience)
    clients.pop("c").close()  # no more signs of life
    took = answered(world, clients, patience)
    world.kill()
    with pytest.raises(NetworkError):
        clients["a"].ask({"name": "a"})
    world.start()
    answered(world, clients, patience)
    stranger = world.client("z")
    with suppress(TimeoutError, NetworkError):
        stranger.ask({"name": "z"})  # once; then its heartbeats continue
    clients["d"] = world.client("d")
    answered(world, clients, patience)
    clients.pop("d").close()
    answered(world, clients, patience)
    stranger.close()
    for client in clients.values():
        client.close()
    return took


def test_the_simulated_lighthouse_answers_as_stated():
    simulation, told = Simulation(0), []
    simulation.loss = 0.0
    with simulated():
        simulation.at(0.0, simulation.lighthouse.tick)
        process = Process(0)
        simulation.tasks.append(Task(simulation, process, lambda: told.append(scenario(Simulated(simulation), 5.0))))
        simulation.is_over = lambda: bool(told)
        while simulation.turn():
            pass
        simulation.end()
    assert told[0] < GRACE + 0.5


@pytest.mark.skipif(find_spec("torchft") is None, reason="torchft is not installed")
def test_torchfts_lighthouse_answers_as_the_simulated_one():
    world = Real()
    try:
        scenario(world, 30.0)  # its first answer waits for the lighthouse to start
    finally:
        world.kill()
