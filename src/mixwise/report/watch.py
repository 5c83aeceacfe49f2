"""The report of runs that go on, on this machine only: a page that asks for news, and a server that has them."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mixwise.errors import ConfigError, MixwiseError
from mixwise.report.folder import Cache, read_folders
from mixwise.report.page import live_data, page

ADDRESS = "127.0.0.1"  # nobody outside this machine can ask


class WatchServer(ThreadingHTTPServer):
    """Serves the report of these folders: `/` the page, `/data.json?since=STAMP` what is new.

    Args:
        folders: run folders.
        port: where; 0 takes one that is free.
    """

    daemon_threads = True

    def __init__(self, folders: Sequence[Path], port: int = 0) -> None:
        read_folders(list(folders))  # a folder that is not there is an error now, not in the browser
        self.folders, self._lock = list(folders), threading.Lock()
        self._cache: Cache = {}
        self._built: tuple[str, dict[str, Any]] | None = None
        try:
            super().__init__((ADDRESS, port), _Answer)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"--port {port} cannot be used: {reason}; choose another, or leave it out") from None

    @property
    def url(self) -> str:
        """What to open in a browser."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def stamp(self) -> str:
        """Changes whenever a file does."""
        files = sorted(
            path
            for folder in self.folders
            for name in ("config.yaml", "metrics.jsonl", "weights.jsonl", "scene.json")
            for path in folder.rglob(name)
        )
        seen = hashlib.sha256()
        for path in files:
            try:
                status = path.stat()
            except OSError:
                continue
            seen.update(f"{path} {status.st_mtime_ns} {status.st_size}\n".encode())
        return seen.hexdigest()[:16]

    def data(self) -> dict[str, Any]:
        """What the page shows now; made anew only if something has changed."""
        with self._lock:
            stamp = self.stamp()
            if self._built is None or self._built[0] != stamp:
                self._built = stamp, {**live_data(self.folders, self._cache), "stamp": stamp}
            return self._built[1]


class _Answer(BaseHTTPRequestHandler):
    server: WatchServer

    def do_GET(self) -> None:
        """Answer a browser."""
        where = urlsplit(self.path)
        # A page from elsewhere whose name was pointed at this machine would ask under its own name.
        if (self.headers.get("Host") or "").partition(":")[0] not in (ADDRESS, "localhost"):
            self._send(403, "text/plain", "only for this machine")
        elif where.path == "/data.json":
            since = parse_qs(where.query).get("since", [""])[0]
            if since == self.server.stamp():
                self._send(204, "application/json", "")
            else:
                self._with_data("application/json", json.dumps)
        elif where.path == "/":
            self._with_data("text/html", page)
        else:
            self._send(404, "text/plain", "there is nothing here")

    def _with_data(self, kind: str, shown: Any) -> None:
        try:
            text = shown(self.server.data())
        except MixwiseError as error:
            self._send(500, "text/plain", str(error))
        else:
            self._send(200, kind, text)

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
        """Say nothing: only the command line prints."""
