"""How far something long is: told to the log, at most every few seconds. The command line shows it."""

from __future__ import annotations

import logging
import time

_EVERY = 5.0  # seconds


class Said:
    """Told how much is done, it says so now and then.

    Args:
        log: where.
        what: is being done.
        total: how much there is to do.
    """

    def __init__(self, log: logging.Logger, what: str, total: int) -> None:
        self.log, self.what, self.total = log, what, total
        self._last = self._start = time.monotonic()

    def __call__(self, done: int) -> None:
        """So much is done."""
        now = time.monotonic()
        if now - self._last >= _EVERY or (done == self.total and self._last > self._start):
            left = (now - self._start) / max(done, 1) * (self.total - done)
            self.log.info("%s: %.0f %%, %.0f s left", self.what, 100 * done / self.total, left)
            self._last = now
