"""Elastic runs on a virtual clock: the code of `Gossip(elastic=True)`, with processes, messages and time simulated.

    python tests/simulate_membership.py 10000       seeds 0 to 9999; stops at the first that fails
    python tests/simulate_membership.py 1 17        replays seed 17, and prints what happened

Every simulated process runs `Gossip`, its membership and its transport as they are. Clock, threads, lighthouse, stores,
gloo and the server of states are replaced by the classes below, which behave as stated in `Lighthouse.ask` and as gloo
was seen to. A task is a greenlet: one runs at a time, until it waits. Then the seed decides which one is next, how long
messages take, which are lost, and when processes are killed, stopped, started again, or lose their connections.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import json
import os
import random
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from greenlet import getcurrent, greenlet

import mixwise as mw
from mixwise.errors import NetworkError
from mixwise.gossip import elastic
from mixwise.mixing import metropolis_hastings
from mixwise.network import board, lighthouse, membership, transfer, transport
from mixwise.network.lighthouse import QUESTION
from mixwise.policies import AwarePairs
from mixwise.sketch import CountSketch

GRACE, TIMEOUT, STEPS = 0.7, 10.0, 5  # seconds, seconds, mixings
LIMIT = 150.0  # virtual seconds after which a run counts as stuck


class KilledError(BaseException):
    """Raised at the wait of a process that is killed."""


# --- tasks, of which one runs at a time ---
@dataclass(eq=False)
class Process:
    """A simulated process; its tasks are its threads."""

    rank: int
    dead: bool = False
    stopped_until: float = 0.0
    end: End | None = None  # of its process group
    client: Client | None = None
    finished: bool = False
    problem: BaseException | None = None


class Task(greenlet):
    """A thread of a simulated process, which runs until it waits."""

    def __init__(self, simulation: Simulation, process: Process, target: Callable[[], object]) -> None:
        super().__init__(parent=simulation.scheduler)
        self.simulation, self.process, self.target = simulation, process, target
        self.true: Callable[[], object] = lambda: True
        self.deadline = simulation.now

    def __str__(self) -> str:
        frames = traceback.extract_stack(self.gr_frame)
        return f"rank {self.process.rank}: " + " > ".join(f"{frame.name}:{frame.lineno}" for frame in frames[2:-1])

    def run(self) -> None:
        """Run the target to its end, or until its process is killed."""
        try:
            if not self.process.dead:
                self.target()
        except KilledError:
            pass
        except BaseException as error:
            self.process.problem = error
        del self.target, self.true

    @property
    def is_able(self) -> bool:
        """Whether it has waited long enough."""
        process, now = self.process, self.simulation.now
        return process.dead or (now >= process.stopped_until and (now >= self.deadline or bool(self.true())))

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return bool(self.dead)

    def wait(self, true: Callable[[], object], seconds: float) -> bool:
        """Let others run until something is true, or for so many seconds."""
        if self.process.dead:
            raise KilledError
        self.true, self.deadline = true, self.simulation.now + seconds
        self.simulation.at(self.deadline, self)
        differentiates = torch.is_grad_enabled()  # a setting of the thread, which all tasks and the scheduler share
        torch.set_grad_enabled(True)
        self.simulation.scheduler.switch()
        torch.set_grad_enabled(differentiates)
        if self.process.dead:
            raise KilledError
        return bool(true())


class Simulation:
    """A run of some processes under faults, all of it decided by the seed."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random, self.now = seed, random.Random(seed), 0.0
        self.world = self.random.choice((2, 3, 3, 4, 4, 5))
        self.pairs = self.random.random() < 0.2 and self.world > 2  # weights of pairs that agree by offers
        self.faults_left = self.random.choice((1, 2, 3, 4))
        self.loss = self.random.choice((0.0, 0.0, 0.02, 0.1))  # of questions, answers and heartbeats
        self.tasks: list[Task] = []
        self.events: list[tuple[float, int, Task | Callable[[], None]]] = []  # of a task: its deadline
        self.numbers = itertools.count()
        self.scheduler = getcurrent()
        self.lighthouse = SimulatedLighthouse(self)
        self.processes: list[Process] = []
        self.stores: dict[int, Store] = {}
        self.servers: dict[int, StateServer] = {}
        self.groups: dict[str, dict[int, End]] = defaultdict(dict)
        self.applied: dict[tuple[str, int], dict[int, Applied]] = defaultdict(dict)  # by group and mixing, then rank
        self.trace: list[str] = []
        self.offered: list[tuple[int, torch.Tensor]] = []

    # --- the scheduler ---
    def at(self, when: float, event: Task | Callable[[], None]) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), event))

    def alarm(self, when: float) -> None:
        self.at(when, lambda: None)

    def say(self, what: str) -> None:
        self.trace.append(f"{self.now:9.4f} {what}")

    def start(self, rank: int) -> None:
        process = Process(rank)
        self.processes.append(process)
        self.say(f"rank {rank} starts")
        self.tasks.append(Task(self, process, lambda: self.program(process)))

    def latency(self) -> float:
        slow = self.random.random() < 0.02
        return self.random.uniform(0.1, 0.5) if slow else self.random.uniform(0.0005, 0.01)

    def run(self) -> None:
        """Run until all processes have ended; then check what they have done."""
        for rank in range(self.world):
            self.at(self.random.uniform(0.0, 1.0), lambda rank=rank: self.start(rank))
        self.at(0.0, self.lighthouse.tick)
        self.at(0.0, self.beat)
        self.at(self.random.uniform(0.0, 3.0), self.fault)
        try:
            while self.turn():
                pass
        finally:
            self.end()
        self.check()

    def turn(self) -> bool:
        """Let one task run, or else let time pass; return whether there is more to do."""
        first = self.random.randrange(len(self.tasks)) if self.tasks else 0
        task = next((task for task in (*self.tasks[first:], *self.tasks[:first]) if task.is_able), None)
        if task is not None:
            self.now += self.random.random() * 1e-4
            task.switch()
            if task.done:
                self.tasks.remove(task)
            if task.process.problem is not None:
                raise AssertionError(f"seed {self.seed}: rank {task.process.rank} failed") from task.process.problem
            return True
        if self.is_over():
            return False
        assert self.now < LIMIT, f"seed {self.seed} is stuck:\n" + "\n".join(map(str, self.tasks))
        when, _, event = heapq.heappop(self.events)
        while isinstance(event, Task) and event.deadline != when:  # it has not waited for so long
            when, _, event = heapq.heappop(self.events)
        self.now = max(self.now, when)
        if not isinstance(event, Task):
            event()
        return True

    def is_over(self) -> bool:
        newest = {process.rank: process for process in self.processes}
        return len(newest) == self.world and all(process.finished for process in newest.values())

    def end(self) -> None:
        for process in self.processes:
            process.dead = True
        while self.tasks:
            task = self.tasks.pop()
            while not task.done:
                task.switch()

    # --- what a process does ---
    def program(self, process: Process) -> None:
        rank = process.rank
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(self.world), MIXWISE_LIGHTHOUSES="127.0.0.1:1")
        os.environ["MIXWISE_GRACE"] = str(GRACE)
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            model = torch.nn.Linear(2, 1, bias=False, dtype=torch.float64)
        target = torch.full((1, 2), float(rank), dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        policy = AwarePairs(2, CountSketch(4), iterations=3) if self.pairs else metropolis_hastings
        graph = mw.graphs.ring(self.world) if self.world > 2 else mw.graphs.complete(self.world)
        try:
            gossip = mw.Gossip(model, optimizer, graph, policy, elastic=True, timeout=TIMEOUT)
            member, last = gossip._elastic.membership, -1
            while gossip.t < STEPS:
                wait(lambda: False, self.random.uniform(0.1, 0.7))  # the gradient
                model.weight.grad = model.weight.detach() - target
                t, group, before = gossip.t, member.group, model.weight.detach() * 0.9 + target * 0.1
                gossip.step()
                assert gossip.t > last, f"rank {rank} went back from mixing {last} to {gossip.t}"
                last = gossip.t
                if (gossip.t, member.group) == (t + 1, group):
                    after = model.weight.detach().clone()
                    partners = [] if gossip.plan is None else partners_of(gossip.plan, gossip.rank, group.ranks)
                    self.applied[group.name, t][rank] = Applied(group.ranks, before, after, partners, self.now)
            member.close()
        except NetworkError as error:
            self.say(f"rank {rank} gives up: {error}")
            self.kill(process)
            return
        process.finished = True
        self.close(process)
        self.say(f"rank {rank} has finished")

    # --- faults ---
    def beat(self) -> None:
        for process in self.processes:
            client = process.client
            beats = client is not None and client.beats and self.now >= process.stopped_until and not process.dead
            if beats and self.random.random() >= self.loss:
                self.lighthouse.hear(client.name)
        self.at(self.now + GRACE / 6, self.beat)

    def alive(self) -> list[Process]:
        newest = {process.rank: process for process in self.processes}
        return [p for p in newest.values() if not (p.dead or p.finished) and self.now >= p.stopped_until]

    def fault(self) -> None:
        """One fault; the next follows soon, so that it meets processes that have not got over this one."""
        self.faults_left -= 1
        kinds = ["close", "lighthouse", "stall"]
        alive = self.alive()
        if len(alive) > 2 or (len(alive) == self.world == 2):
            kinds += ["kill", "kill", "stop", "stop"]
        kind = self.random.choice(kinds)
        if kind == "lighthouse":
            self.say("the lighthouse is killed")
            self.lighthouse.kill(self.now + self.random.uniform(0.3, 2.5))
        elif kind == "stall":
            self.say("the lighthouse is stopped")
            self.lighthouse.stopped_until = self.now + self.random.uniform(0.3, 2.0)
        elif alive:
            process = self.random.choice(alive)
            self.say(f"rank {process.rank}: {kind}")
            if kind == "kill":
                self.kill(process)
            elif kind == "stop":
                process.stopped_until = self.now + self.random.uniform(0.1, 4.0)
                self.alarm(process.stopped_until)
            else:
                self.close(process)
        if self.faults_left > 0:
            self.at(self.now + self.random.uniform(0.0, 1.5), self.fault)

    def kill(self, process: Process) -> None:
        """Kill a process; another takes its place after a while, as under `--max-restarts`."""
        process.dead = True
        self.close(process)
        if process is {p.rank: p for p in self.processes}[process.rank]:
            self.at(self.now + self.random.uniform(0.1, 2.0), lambda: self.start(process.rank))

    def close(self, process: Process) -> None:
        if process.end is not None:
            process.end.close(self)

    # --- the theorems ---
    def check(self) -> None:
        """Check what must hold for every order of events."""
        spans: dict[str, list[tuple[float, int]]] = defaultdict(list)  # of a group: when which rank has mixed
        for (name, t), ranks in self.applied.items():
            where = f"seed {self.seed}, mixing {t}, group {name}"
            sets = {applied.members for applied in ranks.values()}
            assert len(sets) == 1, f"{where}: its ranks see different members: {sets}"
            (members,) = sets
            assert set(ranks) <= set(members), where
            spans[name] += [(applied.at, rank) for rank, applied in ranks.items()]
            for rank, applied in ranks.items() if self.pairs else ():
                for round, partners in enumerate(applied.partners):
                    assert len(partners) <= 1, f"{where}: rank {rank} has the partners {partners}"
                    for other in [ranks[partner] for partner in partners if partner in ranks]:
                        assert other.partners[round] == [rank], f"{where}: rank {rank} and {partners} disagree"
            if set(ranks) == set(members):  # then the mean is conserved: W is doubly stochastic
                before, after = (sum(getattr(a, when) for a in ranks.values()) for when in ("before", "after"))
                assert torch.allclose(before, after, rtol=0, atol=1e-12), f"{where}: {before} became {after}"
        mixed = {name: span for name, span in spans.items() if len({rank for _, rank in span}) > 1}  # with others
        begun = sorted((min(span)[0], name) for name, span in mixed.items())
        for (_, name), (after, other) in itertools.pairwise(begun):  # a rank may end the mixing that it is in
            late = [rank for at, rank in spans[name] if at > after]
            assert len(late) == len(set(late)), f"seed {self.seed}: groups {name} and {other} mix at the same time"
        for t, weight in self.offered:
            assert torch.isfinite(weight).all(), (self.seed, t)


@dataclass(frozen=True)
class Applied:
    """A mixing that a rank has applied: the members of its group, its row before and after, and its partners."""

    members: tuple[int, ...]
    before: torch.Tensor
    after: torch.Tensor
    partners: list[list[int]]  # in each round of the mixing
    at: float


def partners_of(plan: Any, place: int, ranks: tuple[int, ...]) -> list[list[int]]:
    rows = [W.to_dense()[place] for W in plan.params]
    return [[ranks[other] for other in row.nonzero()[0].tolist() if other != place] for row in rows]


def task() -> Task | None:
    current = getcurrent()
    return current if isinstance(current, Task) else None


def wait(true: Callable[[], object], seconds: float) -> bool:
    current = task()
    assert current is not None
    return current.wait(true, seconds)


# --- time and threads ---
class Time:
    """The module `time`."""

    @staticmethod
    def monotonic() -> float:
        current = task()
        return time.monotonic() if current is None else current.simulation.now

    time = monotonic

    @staticmethod
    def sleep(seconds: float) -> None:
        if task() is None:
            time.sleep(seconds)
        else:
            wait(lambda: False, seconds)


class Condition:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...

    def wait_for(self, true: Callable[[], object], seconds: float) -> bool:
        return wait(true, seconds)

    def notify_all(self) -> None: ...


class Event:
    def __init__(self) -> None:
        self.is_set = False

    def wait(self, seconds: float) -> bool:
        return self.is_set or wait(lambda: self.is_set, seconds)

    def set(self) -> None:
        self.is_set = True


class Thread:
    def __init__(self, target: Callable[..., object], args: tuple[object, ...] = (), **options: object) -> None:
        self.run = lambda: target(*args)

    def start(self) -> None:
        current = task()
        assert current is not None
        self.task = Task(current.simulation, current.process, self.run)
        current.simulation.tasks.append(self.task)

    def join(self, timeout: float = 1e9) -> None:
        if task() is not None:  # as it is when the simulation itself ends
            wait(lambda: self.task.done, timeout)


class Queue:
    def __init__(self) -> None:
        self.items: list[Any] = []

    def put(self, item: Any) -> None:
        self.items.append(item)

    def get(self) -> Any:
        wait(lambda: self.items, 1e9)
        return self.items.pop(0)


# --- the lighthouse ---
class SimulatedLighthouse:
    """Answers as torchft's does: one answer for all that ask, once all with a heartbeat have asked."""

    STRAGGLERS = lighthouse._STRAGGLERS / 1000

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.stopped_until, self.epoch = simulation, 0.0, 0
        self.up_from = 0.0
        self.forget()

    def forget(self) -> None:
        self.heard: dict[str, float] = {}
        self.asking: dict[str, Question] = {}
        self.last: set[str] = set()
        self.since = 0.0

    @property
    def is_up(self) -> bool:
        return self.simulation.now >= self.up_from

    @property
    def answers(self) -> bool:
        return self.is_up and self.simulation.now >= self.stopped_until

    def kill(self, until: float) -> None:
        self.epoch, self.up_from = self.epoch + 1, until
        self.simulation.alarm(until)
        self.forget()

    def hear(self, name: str) -> None:
        if self.answers:
            self.heard[name] = self.simulation.now

    def ask(self, question: Question) -> None:
        self.hear(question.name)
        if not self.asking:
            self.since = self.simulation.now
        self.asking[question.name] = question
        self.look()

    def tick(self) -> None:
        if self.answers:
            self.look()
        self.simulation.at(self.simulation.now + 0.04, self.tick)

    def look(self) -> None:
        now = self.simulation.now
        healthy = {name for name, at in self.heard.items() if now - at < GRACE}
        ready = {name: question for name, question in self.asking.items() if name in healthy}
        same = bool(self.last) and self.last <= ready.keys()
        most = len(ready) > len(healthy) / 2
        if ready and (same or (most and (ready.keys() == healthy or now - self.since > self.STRAGGLERS))):
            answer = [ready[name].me for name in sorted(ready)]
            self.last, self.since = set(ready), now
            for name, question in ready.items():
                question.answer = answer
                del self.asking[name]


@dataclass(eq=False)
class Question:
    name: str
    me: dict[str, Any]
    answer: list[dict[str, Any]] | None = None


class Client:
    """The client of the simulated lighthouse."""

    contested = False

    def __init__(self, addresses: list[str], name: str, grace: float) -> None:
        current = task()
        assert current is not None
        self.simulation, self.name, self.beats, self.told = current.simulation, name, True, ""
        current.process.client = self

    def ask(self, me: dict[str, Any]) -> list[dict[str, Any]]:
        simulation, lighthouse, chance = self.simulation, self.simulation.lighthouse, self.simulation.random
        epoch, question = lighthouse.epoch, Question(self.name, me)
        wait(lambda: False, simulation.latency())
        if chance.random() < simulation.loss:
            wait(lambda: lighthouse.epoch != epoch, QUESTION)
            raise TimeoutError
        if not lighthouse.answers and not wait(lambda: lighthouse.answers or not lighthouse.is_up, QUESTION):
            raise TimeoutError
        if lighthouse.epoch == epoch and lighthouse.is_up:
            lighthouse.ask(question)
            if chance.random() < simulation.loss:  # it arrives twice
                lighthouse.ask(question)
            if question.answer is None:
                wait(lambda: question.answer is not None or lighthouse.epoch != epoch, QUESTION)
        if lighthouse.epoch != epoch or not lighthouse.is_up:
            raise NetworkError("no lighthouse answers")
        if question.answer is None or chance.random() < simulation.loss:
            raise TimeoutError
        if chance.random() < 0.1:
            wait(lambda: False, simulation.latency())
        told = ", ".join(f"{m.get('rank')} {m.get('phase')} {m.get('groups')}" for m in question.answer)
        if told != self.told:
            self.told = told
            simulation.say(f"{self.name[:5]} is told of {told}")
        return question.answer

    def close(self) -> None:
        self.beats = False


# --- stores and states ---
@dataclass(eq=False)
class Store:
    owner: Process
    port: int
    notes: set[str] = field(default_factory=set)
    prefix: str = ""

    def set_timeout(self, timeout: object) -> None: ...


def listening_store(host: str, port: int) -> Store:
    current = task()
    assert current is not None
    store = Store(current.process, next(current.simulation.numbers))
    current.simulation.stores[store.port] = store
    return store


def tcp_store(host: str, port: int, timeout: object, wait_for_workers: bool) -> Store:
    store = task().simulation.stores[port]
    reached(store.owner, 1.0, RuntimeError)
    return store


def prefix_store(prefix: str, store: Store) -> Store:
    return Store(store.owner, store.port, store.notes, f"{prefix}/")


def reached(owner: Process, seconds: float, error: type[Exception]) -> None:
    """Take the time of a message to a process and back; raise an error if it does not answer."""
    simulation = task().simulation
    wait(lambda: False, simulation.latency())
    if not wait(lambda: owner.dead or owner.finished or simulation.now >= owner.stopped_until, seconds):
        raise error("it does not answer")
    if owner.dead or owner.finished:
        raise error("it is gone")


class Board:
    def __init__(self, store: Store, answer: float) -> None:
        self.store, self.answer = store, answer

    def write(self, name: str, value: object) -> None:
        reached(self.store.owner, self.answer, NetworkError)
        self.store.notes.add(self.store.prefix + name)

    def has(self, *names: str) -> bool:
        reached(self.store.owner, self.answer, NetworkError)
        return all(self.store.prefix + name in self.store.notes for name in names)


State = tuple[dict[str, torch.Tensor], str]


class StateServer:
    def __init__(self, host: str, timeout: float, take: Callable[[], Any]) -> None:
        current, self.take = task(), take
        self.owner, self.port = current.process, next(current.simulation.numbers)
        self.asked, self.states = 0, []
        current.simulation.servers[self.port] = self

    @property
    def wanted(self) -> bool:
        return self.asked > 0

    def offer(self, state: State) -> None:
        self.states.append(state)
        self.asked = 0


def encode_state(tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> State:
    copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    task().simulation.offered.append((values["t"], copies["model/weight"]))
    return copies, json.dumps(values, default=float)


def fetch_state(host: str, port: int, timeout: float) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    server, simulation = task().simulation.servers[port], task().simulation
    reached(server.owner, timeout, NetworkError)
    seen, server.asked = len(server.states), server.asked + 1
    gone, last = server.owner, simulation.now + timeout
    while len(server.states) == seen and not (gone.dead or gone.finished):
        soon = min(1.0, last - simulation.now)
        if not wait(lambda: len(server.states) > seen or gone.dead or gone.finished, soon):
            if (taken := server.take()) is not None:
                server.states.append(taken)
            elif simulation.now >= last:
                break
    wait(lambda: False, simulation.latency())
    if len(server.states) == seen or gone.dead:
        raise NetworkError("it has not offered its state")
    tensors, values = server.states[seen]
    return dict(tensors), json.loads(values)


# --- process groups, as gloo's ---
class End:
    """One process in a group, whose processes are known by their places, and the messages that it was sent."""

    def __init__(self, group: dict[int, End], process: Process, place: int, size: int) -> None:
        self.group, self.process, self.rank, self.size = group, process, lambda: place, lambda: size
        self.closed: float | None = None  # when the others notice
        self.mail: dict[tuple[int, int], list[tuple[float, torch.Tensor]]] = defaultdict(list)

    def close(self, simulation: Simulation) -> None:
        if self.closed is None:
            self.closed = simulation.now + simulation.latency()
            simulation.alarm(self.closed)


class Work:
    """A message under way; a wait that times out closes all connections of this process."""

    def __init__(self, end: End, peer: End, tensor: torch.Tensor, key: tuple[int, int] | None) -> None:
        self.end, self.peer, self.tensor, self.key = end, peer, tensor, key
        # gloo may miss that a connection was closed, and would then wait for its timeout
        self.misses = task().simulation.random.random() < 0.1

    def wait(self, timeout: Any) -> None:
        simulation = task().simulation
        mail = None if self.key is None else self.end.mail[self.key]

        def arrived() -> bool:
            return mail is None or (bool(mail) and mail[0][0] <= simulation.now)

        def broken() -> bool:
            gone = self.peer.closed is not None and self.peer.closed <= simulation.now and not mail
            return self.end.closed is not None or (gone and not self.misses)

        ok = wait(lambda: broken() or arrived(), timeout.total_seconds())
        if broken():
            raise RuntimeError("connection closed by peer")
        if not ok:
            self.end.close(simulation)
            raise RuntimeError("timed out")
        if mail is not None:
            self.tensor.view(-1).copy_(mail.pop(0)[1])


def end_here() -> End:
    end = task().process.end
    if end is None:
        raise ValueError("there is no process group")
    return end


def isend(tensor: torch.Tensor, peer: int, group: object, tag: int) -> Work:
    end, simulation = end_here(), task().simulation
    other = end.group[peer]
    if end.closed is None and other.closed is None:
        waiting = other.mail[end.rank(), tag]
        when = max(simulation.now + simulation.latency(), waiting[-1][0] if waiting else 0.0)
        waiting.append((when, tensor.detach().reshape(-1).clone()))
        simulation.alarm(when)
    return Work(end, other, tensor, None)


def irecv(tensor: torch.Tensor, peer: int, group: object, tag: int) -> Work:
    end = end_here()
    return Work(end, end.group[peer], tensor, (peer, tag))


def connections(store: Store, rank: int, size: int, timeout: Any) -> End:
    """Connect to all others, as `ProcessGroupGloo` does: it waits five times the timeout for one that has left."""
    simulation, process = task().simulation, task().process
    group = simulation.groups[store.prefix]
    assert rank not in group, f"seed {simulation.seed}: the name of a group was used twice"
    end = group[rank] = End(group, process, rank, size)

    def all_met() -> bool:
        return len(group) == size and not any(other.closed or other.process.dead for other in group.values())

    met = wait(all_met, 5 * timeout.total_seconds())
    wait(lambda: False, simulation.latency())
    if not met:
        end.close(simulation)
        raise RuntimeError("connectFullMesh failed")
    return end


def init_process_group(backend: str, store: Store, rank: int, world_size: int, timeout: Any) -> None:
    task().process.end = transport._made.pop()


def destroy_process_group() -> None:
    end_here().close(task().simulation)
    task().process.end = None


DIST = SimpleNamespace(
    distributed_c10d=SimpleNamespace(_world=SimpleNamespace()),
    is_available=lambda: True, is_initialized=lambda: task() is not None and task().process.end is not None,
    Backend=SimpleNamespace(MIXWISE="mixwise"), ProcessGroupGloo=connections,
    init_process_group=init_process_group, destroy_process_group=destroy_process_group, isend=isend, irecv=irecv,
    get_rank=lambda group: end_here().rank(), get_world_size=lambda group=None: end_here().size(),
    get_backend=lambda group: "gloo", group=SimpleNamespace(WORLD=SimpleNamespace(_device_types=[torch.device("cpu")])),
)  # fmt: skip
THREADING = SimpleNamespace(Thread=Thread, Condition=Condition, Event=Event)


def told(form: Callable[..., None]) -> Callable[..., None]:
    """Put into the trace which groups are formed, and how it ends."""

    def tells(self: Any, view: Any, backend: str, answer: float) -> None:
        say, text = task().simulation.say, f"rank {self.me.rank}: group {view.name} of {view.ranks}"
        say(f"{text} is to be formed")
        try:
            form(self, view, backend, answer)
        except (RuntimeError, NetworkError, TimeoutError) as error:
            say(f"{text} fails: {error}")
            raise
        say(f"{text} is formed")

    return tells


@contextmanager
def simulated() -> Iterator[None]:
    """Replace what surrounds the code of elastic runs."""
    ids, silent = itertools.count(), SimpleNamespace(warning=lambda *text: None)
    parts: list[tuple[Any, dict[str, Any]]] = [
        (membership, {
            "threading": THREADING, "time": Time, "dist": DIST, "Lighthouse": Client, "TCPStore": tcp_store,
            "listening_store": listening_store, "PrefixStore": prefix_store, "Board": Board, "_log": silent,
            "atexit": SimpleNamespace(register=lambda call: None),
            "uuid": SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=str(next(ids)))),
        }),
        (board, {"time": Time, "threading": THREADING}),
        (transport, {"time": Time, "dist": DIST}),
        (transfer, {"time": Time, "dist": DIST, "threading": THREADING, "SimpleQueue": Queue}),
        (elastic, {
            "StateServer": StateServer, "fetch_state": fetch_state, "encode_state": encode_state, "_log": silent,
        }),
        (membership.Membership, {"_form": told(membership.Membership._form)}),
    ]  # fmt: skip
    collects = gc.isenabled()
    with ExitStack() as stack, patch.dict(os.environ):
        gc.disable()  # when it collects is not up to the seed, and threads end with the objects that own them
        stack.callback(gc.enable if collects else gc.disable)
        for module, names in parts:
            for name, value in names.items():
                stack.enter_context(patch.object(module, name, value))
        yield


def run_seed(seed: int) -> Simulation:
    """Run one seed; raise an AssertionError if something does not hold, and print what happened."""
    simulation = Simulation(seed)
    try:
        with simulated():
            simulation.run()
    except BaseException:
        print("\n".join(simulation.trace))
        raise
    return simulation


def main(count: int = 200, first: int = 0) -> None:
    torch.set_num_threads(1)
    if sys.platform == "linux":  # one task runs at a time: on one core they take turns twice as fast
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    start, mixings, groups, seconds = time.time(), 0, 0, 0.0
    for done, seed in enumerate(range(first, first + count), 1):
        simulation = run_seed(seed)
        mixings, groups = mixings + len(simulation.applied), groups + len(simulation.groups)
        seconds += simulation.now
        if done % 500 == 0:
            print(f"{done} seeds", flush=True)
    if count == 1:
        print("\n".join(simulation.trace))
    took = f"{seconds:.0f} virtual seconds, {time.time() - start:.0f} s"
    print(f"{count} seeds: {mixings} mixings in {groups} groups, {took}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
