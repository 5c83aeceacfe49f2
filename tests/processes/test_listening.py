"""Access to a run: on one machine none from outside; on several, no data that arrives becomes code."""

import base64
import os
import pickle
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from ipaddress import ip_address

import psutil
import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

from builders import TouchesAFile, refused
from hosts import Hosts, why_not
from mixwise.errors import ConfigError
from mixwise.launch.command import Machines, python_line, torchrun_line
from mixwise.launch.torchrun import JsonBackend
from mixwise.network import addresses
from mixwise.network.addresses import listening_store
from mixwise.network.world import Processes
from process_pool import in_processes
from programs import Program, free_port, running, wait_for

linux = pytest.mark.skipif(sys.platform != "linux", reason="sockets are looked up in /proc")

# A process group of which every member is connected; it lasts until it is told to end.
SCRIPT = """
import pathlib, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
pathlib.Path(f"up-{dist.get_rank()}").touch()
while not pathlib.Path("end").exists():
    time.sleep(0.05)
dist.destroy_process_group()
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def listening(pid):
    """(address, port) of every socket on which a process or one that it started accepts connections."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    sockets = [found for process in processes for found in process.net_connections("tcp")]
    listening = [found.laddr for found in sockets if found.status == psutil.CONN_LISTEN]
    return {(address.removeprefix("::ffff:"), port) for address, port in listening}


def all_up(folder):
    return len(list(folder.glob("up-*"))) == 2


def launch(*words):
    return [sys.executable, "-m", "mixwise", "launch", *map(str, words)]


@in_processes
@linux
def test_a_run_on_one_machine_listens_where_no_other_machine_reaches_it(folder):
    command = launch("--nproc-per-node", 2, "--max-restarts", 1, "--", "script.py")
    with running(command, folder, log=folder / "run.log") as process:
        wait_for(lambda: all_up(folder), [process], folder)
        found = listening(process.pid)
    assert len(found) >= 3  # the store, and gloo in two processes
    assert all(ip_address(address).is_loopback for address, _ in found), found


@linux
def test_a_store_of_rank_0_listens_on_its_address_only(monkeypatch):
    """As under a launcher that leaves the store to rank 0, such as the two processes of `mixwise doctor`."""
    port = free_port()
    names = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in names.items():
        monkeypatch.setenv(name, str(value))
    world = Processes.meet(5.0)
    assert [host for host, at in listening(os.getpid()) if at == port] == ["127.0.0.1"]
    assert world.size == 1


def test_a_name_that_means_loopback_on_machine_0_is_refused(monkeypatch):
    """Debian's /etc/hosts has the machine's own name for 127.0.1.1."""
    found = [(addresses.socket.AF_INET, addresses.socket.SOCK_STREAM, 6, "", ("127.0.1.1", 29500))]
    monkeypatch.setattr(addresses.socket, "getaddrinfo", lambda *args, **options: found)
    refused(ConfigError, r"that name means 127\.0\.1\.1.*give the address itself", listening_store, "node0", 29500)


# --- what arrives is data ---
# Writes a pickle that runs a command into every key of a store, as it is and as torchrun's own rendezvous keeps it.
STRANGER = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore
host, port, raw, encoded = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3]), sys.argv[4]
store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=90))
keys = {key for key in store.list_keys() if key} if hasattr(store, "list_keys") else set()
for key in keys | {"torch.rendezvous.mixwise", "mixwise/rendezvous/mixwise"}:
    store.set(key, encoded if "rendezvous.mixwise" in key else raw)
print(len(keys))
"""


needs_hosts = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@in_processes
@needs_hosts
@pytest.mark.timeout(240)
def test_a_stranger_can_disturb_a_run_over_several_machines_but_runs_no_code(folder):
    """Machine 0 waits for machine 1; host 1 is none of the run, and writes into every key that it finds."""
    with Hosts(2) as hosts:
        machine = Machines(1, "2", 0, (hosts.address(0), 29500))
        line = python_line(torchrun_line(machine, ["script.py"], max_restarts=1))  # what `mixwise launch` executes
        with running(line, folder, hosts.variables(0), log=folder / "run.log") as process:
            payload = pickle.dumps(TouchesAFile(folder / "executed"))
            words = [hosts.address(0), "29500", payload.hex(), base64.b64encode(payload).decode()]
            stranger = [sys.executable, "-c", STRANGER, *words]
            with Program(stranger, cwd=folder, env=os.environ | hosts.variables(1)) as writes:
                assert writes.wait(100) == 0
            assert process.wait(60) not in (0, None)  # it has read what the stranger wrote
    assert not (folder / "executed").exists()


@in_processes
@needs_hosts
@pytest.mark.soak
@pytest.mark.timeout(240)
def test_several_machines_listen_on_the_interface_of_machine_0_only(folder):
    with Hosts(2) as hosts, ExitStack() as stack:
        for here in (0, 1):
            machines = ["--machine", here, "--machines", "1:2", "--master", f"{hosts.address(0)}:29500"]
            line = launch(*machines, "--nproc-per-node", 1, "--", "script.py")
            process = stack.enter_context(running(line, folder, hosts.variables(here), folder / f"{here}.log"))
        wait_for(lambda: all_up(folder), [process], folder)
        for host in (0, 1):
            sockets = hosts.run(host, "ss -Htln").splitlines()
            assert {line.split()[3].rpartition(":")[0].strip("[]") for line in sockets} == {hosts.address(host)}


def state():
    here, there = _NodeDesc("10.0.0.1", 7, 0), _NodeDesc("10.0.0.2", 8, 0)
    now = datetime.now(UTC)
    written = _RendezvousState()
    written.round, written.complete, written.deadline = 3, True, now
    written.participants, written.last_heartbeats = {here: 0}, {here: now, there: now}
    written.wait_list, written.redundancy_list = {there}, set()
    return written


def test_the_state_of_a_rendezvous_comes_back_as_it_was():
    store = dist.HashStore()
    one, other = JsonBackend(store, "run"), JsonBackend(store, "run")
    assert one.get_state() is None
    _, token, was_set = one.set_state(pickle.dumps(state()))
    assert was_set
    found, _ = other.get_state()
    read, written = vars(pickle.loads(found)), vars(state())
    assert read.keys() == written.keys()
    assert read == vars(pickle.loads(one.get_state()[0]))
    assert all(read[name] == written[name] for name in ("round", "participants", "wait_list"))
    # Whoever has seen an older state does not replace a newer one.
    later = state()
    later.round = 4
    assert other.set_state(pickle.dumps(later), token)[2]
    late, _, was_set = one.set_state(pickle.dumps(state()), token)
    assert not was_set
    assert pickle.loads(late).round == 4


@pytest.mark.parametrize("arrives", [b"\x80\x04.", b"[]", b'{"round": 1}', b'{"closed": true'])
def test_a_state_that_is_none_is_refused(arrives, tmp_path):
    store = dist.HashStore()
    backend = JsonBackend(store, "run")
    for data in (arrives, pickle.dumps(TouchesAFile(tmp_path / "executed"))):
        store.set("mixwise/rendezvous/run", data)
        refused(RendezvousStateError, "holds no state", backend.get_state)
    assert not (tmp_path / "executed").exists()
