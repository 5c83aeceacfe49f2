"""Which processes are present, by torchft's lighthouse: a small server that hears a heartbeat of each.

    python lighthouse.py ADDRESS PORT GRACE         runs a lighthouse; `mixwise launch --on-loss continue` starts it

Of torchft only the lighthouse and its client are used, both in its compiled module. That module is loaded by itself, in
a millisecond: the package around it imports torch and OpenTelemetry and sets up logging, which the lighthouse does not
need. torchft's manager listens on all interfaces and its state transfer unpickles what arrives; neither is used here.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from importlib.machinery import PathFinder
from typing import Any

from mixwise.errors import NetworkError

Present = list[dict[str, Any]]  # what each process that is present has announced

_TICK = 20  # milliseconds between two looks of the lighthouse at its requests
_STRAGGLERS = 1000  # milliseconds that it waits for a process with a heartbeat that does not ask
# Seconds until the question is asked again; it bounds how long the end of a process waits. It must be longer than the
# wait for a straggler: with one in the way, questions that are given up before that are never answered.
QUESTION = 1.5
_AGAIN = 5.0  # seconds until a lighthouse that did not answer is tried again


class Lighthouse:
    """The client of one or several lighthouses, of which the first that answers is asked.

    Args:
        addresses: of the lighthouses, as ADDRESS:PORT, in the same order on all processes.
        name: of this process, unlike that of any other.
        grace: seconds that a process may be silent.

    Attributes:
        contested: whether two parts of a broken network may each find an answer.
    """

    def __init__(self, addresses: Sequence[str], name: str, grace: float) -> None:
        self.contested = len(addresses) > 1
        self._addresses, self._name, self._client_of = addresses, name, torchft().LighthouseClient
        self._clients: dict[str, Any] = {}
        self._resting: dict[str, float] = {}  # until when one that did not answer is left alone
        self._ended = threading.Event()
        self._beats = threading.Thread(target=self._beat, args=(grace / 6,), name="mixwise heartbeat", daemon=True)
        self._beats.start()

    def ask(self, me: dict[str, Any]) -> Present:
        """Announce this process, and return what all present ones have announced; all in an answer get the same one.

        Returns once all processes that were in the last answer have asked again or are silent for the grace period;
        one that gives signs of life, but does not ask, is waited for a second.
        Raises a TimeoutError if it takes longer than 1.5 seconds, a NetworkError if no lighthouse can be reached.
        """
        why = "none was tried"
        for address in self._addresses:
            if self.contested and time.monotonic() < self._resting.get(address, 0.0):
                continue
            try:
                answer = self._client(address).quorum(
                    replica_id=self._name, timeout=timedelta(seconds=QUESTION), address="", store_address="", step=0,
                    world_size=1, shrink_only=False, data=me,
                )  # fmt: skip
                return [present.data for present in answer.participants]
            except TimeoutError:
                raise
            except (RuntimeError, OSError) as error:
                why = str(error)
                self._resting[address] = time.monotonic() + _AGAIN
        raise NetworkError(f"no lighthouse answers at {', '.join(self._addresses)}: {why}")

    def close(self) -> None:
        """Give no more signs of life; a thread that is inside of torchft when Python ends would abort the process."""
        self._ended.set()
        self._beats.join()

    def _client(self, address: str) -> Any:
        if address not in self._clients:  # torchft would report every attempt
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
            self._clients[address] = self._client_of(f"http://{address}", timedelta(seconds=2))
        return self._clients[address]

    def _beat(self, interval: float) -> None:
        while not self._ended.wait(interval):
            for client in list(self._clients.values()):
                try:
                    client.heartbeat(self._name, timedelta(seconds=1))
                except (RuntimeError, OSError):
                    self._ended.wait(interval)  # it is gone; `ask` finds out


def torchft() -> Any:
    """Return the compiled module of torchft, without the package around it."""
    package = importlib.util.find_spec("torchft")
    spec = package and PathFinder.find_spec("torchft._torchft", package.submodule_search_locations)
    if spec is None or spec.loader is None:
        raise NetworkError("elastic runs need torchft, which is not installed; pip install 'mixwise[elastic]'")
    os.environ.setdefault("RUST_LOG", "error")  # it would report every answer
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(host: str, port: str, grace: str) -> None:
    """Run a lighthouse until a signal ends it."""
    server = torchft().LighthouseServer(
        bind=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        min_replicas=1,
        join_timeout_ms=_STRAGGLERS,
        quorum_tick_ms=_TICK,
        heartbeat_timeout_ms=int(1000 * float(grace)),
    )
    signal.pause()
    del server


if __name__ == "__main__":
    main(*sys.argv[1:])
