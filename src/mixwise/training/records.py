"""What a run yields: one record per step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Record:
    """What happened at step t.

    `values` holds only what the seed determines; `seconds` holds wall-clock times, which it does not. Parameters are
    judged after the mixing of step t, gradients and the mixing error as they were in it.
    """

    step: int
    values: dict[str, Any]
    seconds: dict[str, float]

    def to_json(self) -> str:
        """One line of JSON, with all digits of every number."""
        return json.dumps({"step": self.step, **self.values})

    def timings_to_json(self) -> str:
        """One line of wall-clock times."""
        return json.dumps({"step": self.step, **{name: round(value, 6) for name, value in self.seconds.items()}})
