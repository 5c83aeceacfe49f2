"""Progress of a long operation, in the log. The command line shows it."""

from __future__ import annotations

import logging
import time

_INTERVAL = 5.0  # seconds


class ProgressLog:
    """Logs the progress of an operation every few seconds; a short operation is not mentioned.

    Args:
        log: the logger.
        title: of the operation.
        total: the amount of work, in any unit.
    """

    def __init__(self, log: logging.Logger, title: str, total: int) -> None:
        self.log, self.title, self.total = log, title, total
        self._last = self._start = time.monotonic()

    def __call__(self, done: int) -> None:
        """Report the amount of work that is done."""
        now = time.monotonic()
        if now - self._last >= _INTERVAL or (done == self.total and self._last > self._start):
            left = (now - self._start) / max(done, 1) * (self.total - done)
            self.log.info("%s: %.0f %%, %.0f s left", self.title, 100 * done / self.total, left)
            self._last = now
