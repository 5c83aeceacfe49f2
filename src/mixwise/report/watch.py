"""The report of runs in progress, served to this machine only: the page asks for new data while runs write it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mixwise.errors import ConfigError, MixwiseError
from mixwise.report.divergence import DIVERGED
from mixwise.report.folder import Cache, read_folders, run_folders, seed_folders
from mixwise.report.page import page, page_data

ADDRESS = "127.0.0.1"  # not reachable from other machines
_CONNECTIONS = 32  # at a time, each with a thread; more are closed at once
_FILES = ("metrics.jsonl", "weights.jsonl", "nodes.jsonl", "scene.json", DIVERGED)


class WatchServer(ThreadingHTTPServer):
    """Serves the report of these folders: `/` is the page, `/data.json?since=STAMP` its data if they are newer.

    Args:
        folders: run folders.
        port: the port to serve on; 0 chooses a free one.
    """

    daemon_threads = True

    def __init__(self, folders: Sequence[Path], port: int = 0) -> None:
        self.folders, self._lock = list(folders), threading.Lock()
        self._cache: Cache = {}
        self._built: tuple[str, dict[str, Any]] | None = None
        self._free = threading.Semaphore(_CONNECTIONS)
        read_folders(self.folders, self._cache)  # a missing folder is an error now, not in the browser
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            reason = f"{error.strerror}; choose another, or leave it out"
            raise ConfigError(f"--port {port} cannot be used: {reason}") from None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or close the connection if there are too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room for another connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    @property
    def url(self) -> str:
        """The address to open in a browser."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def stamp(self) -> str:
        """A digest that changes whenever a file does."""
        seen = hashlib.sha256()
        for path in self._files():
            with suppress(OSError):
                status = path.stat()
                seen.update(f"{path} {status.st_mtime_ns} {status.st_size}\n".encode())
        return seen.hexdigest()[:16]

    def _files(self) -> Iterator[Path]:
        for folder in (folder for path in self.folders for folder in run_folders(path)):
            yield folder / "config.yaml"
            for _, place in sorted(seed_folders(folder).items()):
                yield from (place / name for name in _FILES)

    def data(self) -> dict[str, Any]:
        """The data of the page, rebuilt only if a file has changed."""
        with self._lock:
            stamp = self.stamp()
            if self._built is None or self._built[0] != stamp:
                found = read_folders(self.folders, self._cache)
                running = not all(folder.finished for folder in found)
                self._built = stamp, {**page_data(found), "live": True, "running": running, "stamp": stamp}
            return self._built[1]


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    timeout = 10.0  # seconds without a request after which a connection is closed

    def do_GET(self) -> None:
        """Answer a browser."""
        where = urlsplit(self.path)
        # A foreign page whose host name was pointed at this machine would send that name.
        if (self.headers.get("Host") or "").partition(":")[0] not in (ADDRESS, "localhost"):
            self._send(403, "text/plain", "served to this machine only")
        elif where.path == "/data.json":
            if parse_qs(where.query).get("since") == [self.server.stamp()]:
                self._send(204, "application/json", "")
            else:
                self._send_data("application/json", json.dumps)
        elif where.path == "/":
            self._send_data("text/html", page)
        else:
            self._send(404, "text/plain", "not found")

    def _send_data(self, kind: str, shown: Callable[[dict[str, Any]], str]) -> None:
        try:
            self._send(200, kind, shown(self.server.data()))
        except MixwiseError as error:
            self._send(500, "text/plain", str(error))

    def _send(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):  # the browser may have left
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: only the command line prints."""
