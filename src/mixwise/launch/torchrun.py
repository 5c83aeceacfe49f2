"""torchrun with a rendezvous that listens on one address only, and unpickles nothing that comes over the network.

    python -m mixwise.launch.torchrun --rdzv-backend=mixwise --rdzv-endpoint=10.0.0.1:29500 …

torchrun's stores listen on all interfaces. With `--standalone`, with `--rdzv-backend=c10d`, and in torch 2.13 also by
default on one machine, it unpickles the state of the rendezvous from such a store: anyone who reaches the port can run
code (`_BackendRendezvousStateHolder.sync`; no other part of torchrun unpickles what arrives). Here torchrun
works with stores that are bound to the address of the endpoint, and with a state in JSON.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
from dataclasses import astuple
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    RendezvousTimeout,
    _NodeDesc,
    _RendezvousState,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.run import main as torchrun

from mixwise.errors import MixwiseError
from mixwise.launch.supervisor import die_with_parent
from mixwise.network.addresses import address_towards, gloo_interface, listening_store
from mixwise.network.board import Board
from mixwise.network.refusal import REPORTS, refusal_in
from mixwise.network.world import BOARD

BACKEND = "mixwise"
_REPEATED = [f"torch.distributed.elastic.multiprocessing.{name}" for name in ("api", "errors.error_handler")]  # loggers
_ARRIVAL = 600  # seconds within which all machines of a fixed number must have been started, as torchrun has it


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Return a rendezvous: of a fixed number of machines if the parameters have a `rank`, else of changing machines.

    The store of changing machines is kept by the one with `is_host`.
    """
    host, port = parse_rendezvous_endpoint(params.endpoint, default_port=0)
    for name, value in gloo_interface(host, port).items():
        os.environ.setdefault(name, value)  # for the workers
    rank = params.get_as_int("rank")
    if rank is not None:
        return FixedMachines(host, port, rank, params.max_nodes, params.run_id, _ARRIVAL)
    wait = cast(int, params.get_as_int("read_timeout", 60))
    hosts = params.get_as_bool("is_host")
    store = listening_store(host, port, wait) if hosts else Board.at(host, port, wait).store
    os.environ.setdefault(BOARD, params.endpoint)  # outlives restarts, unlike the store of a round
    waits = (params.get_as_int(f"{name}_timeout") for name in ("join", "last_call", "close", "heartbeat"))
    machines: RendezvousHandler = ChangingMachines.from_backend(
        params.run_id,
        store,
        JsonBackend(store, params.run_id),
        params.min_nodes,
        params.max_nodes,
        params.local_addr or (host if hosts else address_towards(host, port)),
        RendezvousTimeout(*(None if wait is None else timedelta(seconds=wait) for wait in waits)),
        cast(int, params.get_as_int("keep_alive_interval", 5)),
        cast(int, params.get_as_int("keep_alive_max_attempt", 3)),
    )
    return machines


class FixedMachines(StaticTCPRendezvous):
    """torchrun's static rendezvous; machine 0 listens on its address in place of all of them."""

    def get_backend(self) -> str:
        """The name by which torchrun knows it."""
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """The store is made once, and kept over restarts of the workers."""
        address, seconds = (self.master_addr, self.master_port), self.timeout.total_seconds()
        if self._store is None and self.rank > 0:
            self._store = Board.at(*address, seconds).store
        elif self._store is None:
            self._store = listening_store(*address, seconds)
            self.master_port = self._store.port
        return super().next_rendezvous()


class ChangingMachines(DynamicRendezvousHandler):
    """torchrun's dynamic rendezvous; every round has a store of its own for the workers, bound to one address.

    torchrun would make it once, and not tell machines that join later: they and all others would end after a minute.
    """

    def next_rendezvous(self) -> RendezvousInfo:
        """Drop the store of the last round, so that a new one is made and announced to all machines of this round."""
        self._shared_tcp_store_server = self._bootstrap_store_info = None
        return super().next_rendezvous()

    @property
    def use_agent_store(self) -> bool:
        """The workers never host a store."""
        return True

    def _create_tcp_store_server(self, master_addr: str, master_port: int) -> TCPStore:
        return listening_store(master_addr, master_port)


class JsonBackend(RendezvousBackend):
    """Keeps the state of a dynamic rendezvous in a store, as JSON.

    torchrun hands the state over, and takes it back, as a pickle. The pickles that it takes back are made here, from
    JSON: none of them has been in the store.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self._key = store, f"mixwise/rendezvous/{run_id}"
        self._call("compare_set", self._key, "", "null")  # a read of a key that was never written would wait

    @property
    def name(self) -> str:
        """The name by which torchrun knows it."""
        return BACKEND

    def get_state(self) -> tuple[bytes, Any] | None:
        """The state, and the text in the store, by which a later change knows that it is still the same."""
        return _decoded(self._call("get", self._key))

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        """Replace the state that the token stands for; return the state afterwards, and whether it is this one."""
        mine = _to_json(pickle.loads(state))  # pickled by this process
        found = self._call("compare_set", self._key, (token or b"null").decode(), mine)
        decoded = _decoded(found)
        return None if decoded is None else (*decoded, found == mine.encode())

    def _call(self, operation: str, *args: str) -> bytes:
        try:
            return cast(bytes, getattr(self._store, operation)(*args))
        except (RuntimeError, ValueError) as error:
            raise RendezvousConnectionError(f"the store of the rendezvous is gone: {error}") from None


def _to_json(state: _RendezvousState) -> str:
    plain = dict(vars(state))
    for name in ("participants", "last_heartbeats"):
        plain[name] = [[astuple(node), value] for node, value in plain[name].items()]
    for name in ("wait_list", "redundancy_list"):
        plain[name] = [astuple(node) for node in plain[name]]
    return json.dumps(plain, default=datetime.isoformat)


def _decoded(text: bytes) -> tuple[bytes, bytes] | None:
    """The state in the store as the pickle that torchrun expects, and its text."""
    try:
        plain = json.loads(text)
        if plain is None:
            return None
        state = _RendezvousState()
        if plain.keys() != vars(state).keys():
            raise ValueError(f"it has the fields {', '.join(plain)}")
        if plain["deadline"] is not None:
            plain["deadline"] = datetime.fromisoformat(plain["deadline"])
        plain["participants"] = {_NodeDesc(*node): int(rank) for node, rank in plain["participants"]}
        beats = plain["last_heartbeats"]
        plain["last_heartbeats"] = {_NodeDesc(*node): datetime.fromisoformat(at) for node, at in beats}
        for name in ("wait_list", "redundancy_list"):
            plain[name] = {_NodeDesc(*node) for node in plain[name]}
    except (AttributeError, TypeError, ValueError) as error:
        raise RendezvousStateError(f"the store of the rendezvous holds no state: {error}") from None
    vars(state).update(plain)
    return pickle.dumps(state), text


def main() -> None:
    """Run torchrun with this rendezvous, and with workers that do not outlive it.

    What torchrun reports of workers that have failed is printed once, without the traceback of torchrun itself; a
    refusal of mixwise, which all workers share, is printed in its place.
    """
    starts: Any = subprocess_handler
    starts.Popen = partial(starts.Popen, preexec_fn=die_with_parent)
    rendezvous_handler_registry.register(BACKEND, create_handler)
    os.environ[REPORTS] = str(os.getpid())
    if "--nproc-per-node=1" not in sys.argv:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, with five lines about it
    for name in _REPEATED:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        torchrun()
    except ChildFailedError as error:
        for failure in error.failures.values():
            if sentence := refusal_in(failure.error_file_data):
                print(f"error: {sentence}", file=sys.stderr)
                sys.exit(failure.exitcode)
        print(error, file=sys.stderr)
        sys.exit(1)
    except MixwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
