"""The state of a process for one that joins: safetensors over HTTP, with JSON inside; reading it runs no code."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from mixwise.errors import NetworkError

_VALUES = "values"  # the tensor that holds JSON


class StateServer:
    """Serves the state that the main thread offers when one is wanted, between two steps.

    Args:
        host: the address on which it listens.
        timeout: seconds that a process that joins waits for the state.
    """

    def __init__(self, host: str, timeout: float) -> None:
        self._offered, self._state, self._wanted, self._timeout = threading.Condition(), b"", 0, timeout
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                state = outer._awaited()
                self.send_response(200 if state else 503)
                self.send_header("Content-Length", str(len(state)))
                self.end_headers()
                self.wfile.write(state)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads, address_family = True, AF_INET6 if ":" in host else AF_INET

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # the process that asked is gone

        self._server = Server((host, 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="mixwise state", daemon=True).start()

    @property
    def wanted(self) -> bool:
        """Whether a process waits for the state."""
        return self._wanted > 0

    def offer(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """Hand the state, whose tensors are copied, to all processes that wait for it."""
        told = torch.frombuffer(bytearray(json.dumps(values, default=float).encode()), dtype=torch.uint8)
        state = save({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()} | {_VALUES: told})
        with self._offered:
            self._state = state
            self._offered.notify_all()

    def _awaited(self) -> bytes:
        with self._offered:
            self._state, self._wanted = b"", self._wanted + 1
            self._offered.wait_for(lambda: self._state, self._timeout)
            self._wanted -= 1
            return self._state


def fetch_state(host: str, port: int, timeout: float) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors and values that the process at this address offers."""
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
