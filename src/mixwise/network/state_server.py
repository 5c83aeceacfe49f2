"""The state of a process for one that joins: safetensors over HTTP, with JSON inside; reading it runs no code."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from mixwise.errors import NetworkError

_VALUES = "values"  # the tensor that holds JSON
_SOON = 1.0  # seconds that a busy process has to offer its state by itself
_REQUEST = 10.0  # seconds from a connection to its request, and from one piece of the state to the next
_CONNECTIONS = 64  # at a time; each has a thread
_PIECE = 1 << 20  # bytes


def encode_state(tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> bytes:
    """Return the state as it travels; the tensors are copied."""
    told = torch.frombuffer(bytearray(json.dumps(values, default=float).encode()), dtype=torch.uint8)
    return save({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()} | {_VALUES: told})


class StateServer:
    """Serves the state that the main thread offers between two steps, or, if it is busy elsewhere, one that is taken.

    Args:
        host: the address on which it listens.
        timeout: seconds that a process that joins waits for the state.
        take: returns the state as it is now, in a thread; None while it changes.
    """

    def __init__(self, host: str, timeout: float, take: Callable[[], bytes | None] = lambda: None) -> None:
        self._offered, self._state, self._wanted, self._timeout = threading.Condition(), b"", 0, timeout
        self._take, self._free = take, threading.Semaphore(_CONNECTIONS)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _REQUEST

            def do_GET(self) -> None:
                state = memoryview(outer._awaited())
                self.send_response(200 if state else 503)
                self.send_header("Content-Length", str(len(state)))
                self.end_headers()
                for start in range(0, len(state), _PIECE):
                    self.wfile.write(state[start : start + _PIECE])

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads, address_family = True, AF_INET6 if ":" in host else AF_INET

            def process_request(self, request: Any, client_address: Any) -> None:
                if outer._free.acquire(blocking=False):
                    super().process_request(request, client_address)
                else:
                    self.shutdown_request(request)

            def process_request_thread(self, request: Any, client_address: Any) -> None:
                try:
                    super().process_request_thread(request, client_address)
                finally:
                    outer._free.release()

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # the process that asked is gone

        self._server = Server((host, 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="mixwise state", daemon=True).start()

    @property
    def wanted(self) -> bool:
        """Whether a process waits for the state."""
        return self._wanted > 0

    def offer(self, state: bytes) -> None:
        """Hand the state to all processes that wait for it."""
        with self._offered:
            self._state = state
            self._offered.notify_all()

    def _awaited(self) -> bytes:
        last = time.monotonic() + self._timeout
        with self._offered:
            self._state, self._wanted = b"", self._wanted + 1
        try:
            while time.monotonic() < last:
                with self._offered:
                    if self._offered.wait_for(lambda: self._state, min(_SOON, self._timeout)):
                        return self._state
                if (state := self._take()) is not None:
                    return state
            return b""
        finally:
            with self._offered:
                self._wanted -= 1


def fetch_state(host: str, port: int, timeout: float) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors and values that the process at this address offers; no wait is longer than the timeout."""
    connection = HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", "/")
        answer = connection.getresponse()
        state = answer.read()
        if answer.status != 200:
            raise NetworkError(f"{host}:{port} has not offered its state within {timeout:g} s")
        tensors = load(state)
        return tensors, dict(json.loads(tensors.pop(_VALUES).numpy().tobytes()))
    except (OSError, HTTPException, SafetensorError, KeyError, ValueError) as error:
        raise NetworkError(f"the state at {host}:{port} cannot be read: {error}") from None
    finally:
        connection.close()
