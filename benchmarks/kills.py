"""Kills of all kinds in a run of 8 processes on one machine: how soon the others continue, and what comes of it.

    python benchmarks/kills.py --kills 150 --out runs/kills          digits, nodes with different labels, ring of 8

The kinds take turns, and each waits until at least 6 ranks are back. Every rank writes one line when it leaves a
group, because it has noticed a loss or a new rank, one per change of its group, and one per mixing that it has applied:
its number, and the name and members of its group. Ranks that have applied the same mixing in different groups would be
a split brain. A rank that takes 5 seconds for a step writes the stacks of its threads into the log.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

NODES = 8
KINDS = ("SIGKILL", "SIGSTOP", "exception", "exit", "closed sockets", "lighthouse")
TIMES = ("noticed", "continued", "pause")  # by all others; by all others; median over the others, between two steps
SIGNALS = {"exception": signal.SIGUSR1, "exit": signal.SIGUSR2, "closed sockets": signal.SIGALRM}


# --- a rank ---
def train(folder: Path, lr: float) -> None:
    """Train until the folder says at which mixing to end; write what happens."""
    import torch
    from sklearn.datasets import load_digits

    import mixwise as mw
    from mixwise.network.membership import Membership
    from mixwise.network.transport import close_connections

    rank, log = int(os.environ["RANK"]), (folder / f"rank-{os.environ['RANK']}.jsonl").open("a", buffering=1)

    told: list[str] = []
    signal.signal(signal.SIGUSR1, lambda *_: told.append("fail"))
    signal.signal(signal.SIGUSR2, lambda *_: os._exit(3))
    signal.signal(signal.SIGALRM, lambda *_: close_connections())
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    train_x, train_y, test_x, test_y = x[:1400], y[:1400], x[1400:], y[1400:]
    own = ((train_y + torch.arange(1400) % 2) % 10 * NODES // 10 == rank).nonzero()[:, 0]  # few labels per node
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    form = Membership._form

    def logged(self, view, *options):
        start, how = time.time(), "formed"
        try:
            form(self, view, *options)
        except Exception as error:
            how = str(error)
            raise
        finally:
            log.write(json.dumps({"group": view.name, "seconds": time.time() - start, "how": how}) + "\n")

    connect = Membership.connect

    def noticed(self, *options):
        log.write(json.dumps({"left": time.time()}) + "\n")
        return connect(self, *options)

    Membership._form, Membership.connect = logged, noticed
    gossip = mw.Gossip(model, optimizer, mw.graphs.ring(NODES), elastic=True)
    membership, group, batches = gossip._elastic.membership, None, torch.Generator().manual_seed(rank)
    applied = (folder / f"mixings-{rank}").open("a", buffering=1)
    last = time.time()

    def end() -> int:
        try:
            return int((folder / "end").read_text())
        except (OSError, ValueError):
            return 1 << 60

    while gossip.t < end():
        if told:
            raise RuntimeError("told to fail")
        chosen = own[torch.randint(len(own), (16,), generator=batches)]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(train_x[chosen]), train_y[chosen]).backward()
        before = gossip.t, membership.group
        faulthandler.dump_traceback_later(5)
        gossip.step()
        now = time.time()
        if (gossip.t - 1, membership.group) == before:  # a mixing that failed leads to another group
            members = ",".join(map(str, before[1].ranks))
            applied.write(f"{before[0]} {before[1].name} {members} {now:.3f}\n")
        if membership.group != group:
            group = membership.group
            port = int(os.environ["MIXWISE_LIGHTHOUSES"].rpartition(":")[2])
            change = {"at": now, "t": gossip.t, "pid": os.getpid(), "now": group.ranks, "pause": now - last}
            log.write(json.dumps(change | {"lighthouse": port}) + "\n")
        last = now
        time.sleep(0.01)
    faulthandler.cancel_dump_traceback_later()
    model.load_state_dict(gossip.average())
    log.write(json.dumps({"accuracy": float((model(test_x).argmax(1) == test_y).float().mean()), "t": gossip.t}) + "\n")


# --- the one that kills ---
def lines(folder: Path, rank: int) -> list[dict]:
    """What a rank has written."""
    try:
        return [
            json.loads(line) for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines() if line[-1] == "}"
        ]
    except FileNotFoundError:
        return []


def newest(folder: Path) -> dict[int, dict]:
    """The last change of every rank's group."""
    found = {rank: [line for line in lines(folder, rank) if "now" in line] for rank in range(NODES)}
    return {rank: changes[-1] for rank, changes in found.items() if changes}


def present(folder: Path) -> set[int]:
    """The members of the newest group."""
    return set(max(newest(folder).values(), key=lambda line: line["at"], default={"now": ()})["now"])


def until(true, seconds: float) -> bool:
    """Whether it became true in time."""
    last = time.time() + seconds
    while not true():
        if time.time() > last:
            return False
        time.sleep(0.02)
    return True


def launch(folder: Path, lr: float) -> subprocess.Popen:
    """Start 8 ranks that are started again when they are lost."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "mixwise", "launch", "--nproc-per-node", str(NODES), "--on-loss", "continue"]
    command += ["--max-restarts", "100000", "--", __file__, "--rank", "--out", str(folder), "--lr", str(lr)]
    from programs import Program  # of the tests: forked from a process that has imported everything, it starts at once

    environment = os.environ | {"STARTS_PROGRAMS": "1", "OMP_NUM_THREADS": "1"}
    return Program(command, env=environment, stdout=(folder / "log").open("w"), stderr=subprocess.STDOUT)


def kill_once(folder: Path, launcher: subprocess.Popen, kind: str, rank: int) -> dict | None:
    """Kill, and return how long the others took to continue; None if they did not within 60 s."""
    import psutil

    if kind == "lighthouse":
        children, port = psutil.Process(launcher.pid).children(), newest(folder)[rank]["lighthouse"]
        (pid,) = [child.pid for child in children if listens(child, port)]
    else:
        pid = newest(folder)[rank]["pid"]
    others, start = present(folder) - {rank}, time.time()
    os.kill(pid, SIGNALS.get(kind) or getattr(signal, kind if kind.startswith("SIG") else "SIGKILL"))
    if kind == "lighthouse":  # no rank is lost: all of them must train on
        time.sleep(3)
        return {"kind": kind, "others": sum(line["at"] > start for line in newest(folder).values())}

    def continued() -> bool:
        now = newest(folder)
        return all(now[r]["at"] > start for r in others)

    in_time = until(continued, 60)
    if kind == "SIGSTOP":
        time.sleep(3 * in_time)
        os.kill(pid, signal.SIGCONT)
    if not in_time:
        return None
    left = [next((line["left"] for line in lines(folder, r) if line.get("left", 0) > start), start) for r in others]
    after = [next(line for line in lines(folder, r) if line.get("at", 0) > start) for r in others]
    return {
        "kind": kind, "rank": rank, "noticed": max(left) - start,
        "continued": max(line["at"] for line in after) - start,
        "pause": median(line["pause"] for line in after), "killed_at": start,
    }  # fmt: skip


def listens(process: object, port: int) -> bool:
    """Whether a process accepts connections at this port."""
    return any(at.status == "LISTEN" and at.laddr.port == port for at in process.net_connections("tcp"))


def split_brains(folder: Path) -> tuple[int, int, int, int]:
    """Mixings applied in two groups, groups with two sets of members, mixings in a group after the next one; all."""
    groups, members, spans = defaultdict(set), defaultdict(set), defaultdict(list)
    for rank in range(NODES):
        for line in (folder / f"mixings-{rank}").read_text().splitlines():
            with suppress(ValueError):  # a line that a kill has cut off
                t, name, ranks, at = line.split(" ")
                groups[int(t)].add(name)
                members[name].add(ranks)
                spans[name].append((float(at), int(t)))
    begun, late = sorted((min(span)[0], name) for name, span in spans.items()), 0
    for (_, name), (after, following) in pairwise(begun):
        first = min(t for _, t in spans[following])  # a rank that was stopped may end those before, as the others have
        late += sum(at > after and t >= first for at, t in spans[name])
    mixed = sum(len(names) > 1 for names in groups.values())
    return mixed, sum(len(sets) > 1 for sets in members.values()), late, len(groups)


def longest_gaps(folder: Path) -> list[float]:
    """The longest times in which no rank has applied a mixing, in seconds."""
    lines = [line.split() for rank in range(NODES) for line in (folder / f"mixings-{rank}").read_text().splitlines()]
    times = sorted(float(line[3]) for line in lines if len(line) == 4)
    return sorted((round(after - before, 1) for before, after in pairwise(times)), reverse=True)[:5]


def finish(folder: Path, launcher: subprocess.Popen, end: int) -> list[float]:
    """Let all ranks end at this mixing; return their accuracies."""
    (folder / "new").write_text(str(end))
    (folder / "new").rename(folder / "end")
    launcher.wait(1200)
    return [line["accuracy"] for rank in range(NODES) for line in lines(folder, rank) if "accuracy" in line]


def main() -> None:
    """Kill, then compare with a run that is left alone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--kinds", default=",".join(KINDS), help="in turn, separated by commas")
    parser.add_argument("--rank", action="store_true", help="be one of the ranks")
    args = parser.parse_args()
    if args.rank:
        train(args.out, args.lr)
        return
    chance, found, stuck, kinds, loads = random.Random(args.seed), [], 0, args.kinds.split(","), []
    folder, stop = args.out / "killed", time.time() + 60 * args.minutes
    launcher = launch(folder, args.lr)
    assert until(lambda: len(present(folder)) == NODES, 300), "the run did not start"
    for number in range(args.kills):
        if time.time() > stop:
            break
        assert until(lambda: len(present(folder)) >= 6 and launcher.poll() is None, 300), "fewer than 6 ranks for 300 s"
        time.sleep(chance.uniform(0.2, 2.0))
        kind, rank = kinds[number % len(kinds)], chance.choice(sorted(present(folder)))
        try:
            result = kill_once(folder, launcher, kind, rank)
        except ProcessLookupError:  # it was about to end, and the others have not noticed yet
            continue
        stuck += result is None
        loads.append(os.getloadavg()[0])
        if result is not None:
            found.append(result)
        print(number, result, sorted(present(folder)), flush=True)
    all_back = until(lambda: len(present(folder)) == NODES, 300)
    t = max(line["t"] for line in newest(folder).values()) + 500
    accuracy = finish(folder, launcher, t)
    twice, unclear, late, mixings = split_brains(folder)
    print(f"\n{len(found) + stuck} kills, {stuck} not survived; all ranks back at the end: {all_back}")
    print(f"load of the machine: {min(loads):.0f} to {max(loads):.0f}, {os.cpu_count()} cores")
    for kind in KINDS:
        own = [result for result in found if result["kind"] == kind]
        if own and "pause" in own[0]:
            told = (
                f"{name} {median(r[name] for r in own):.2f} s (most {max(r[name] for r in own):.2f})" for name in TIMES
            )
            print(f"{kind:15} {len(own):4}  {', '.join(told)}")
        elif own:
            print(f"{kind:15} {len(own):4}  ranks that changed their group: {sum(r['others'] for r in own)}")
    print(f"of {mixings} mixings {twice} were applied in two groups, {late} in a group that others had left")
    attempts = [line for rank in range(NODES) for line in lines(folder, rank) if "how" in line]
    formed = [line["seconds"] for line in attempts if line["how"] == "formed"]
    connecting = sum("no end within" in line["how"] for line in attempts)
    print(
        f"groups formed in {median(formed):.2f} s (most {max(formed):.2f}; {len(formed)} times by a rank); given up "
        f"{len(attempts) - len(formed)} times, {connecting} of them while connecting"
    )
    print(f"longest times without a mixing of any rank: {longest_gaps(folder)} s")
    print(f"groups with two sets of members: {unclear}; ended at mixing {t}, accuracy {accuracy}")
    alone = launch(args.out / "alone", args.lr)
    print(f"undisturbed: accuracy {finish(args.out / 'alone', alone, t)}")


if __name__ == "__main__":
    main()
