"""fingerprint.json: what a resumed run must have in common with the runs that its folder holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ValidationError

from mixwise.experiments.pairing import Start, check_same_starts
from mixwise.storage import text, write_text

FINGERPRINT = "fingerprint.json"


class Fingerprint(BaseModel):
    """The fingerprint of an experiment.

    Attributes:
        starts: what each seed of a comparison starts with.
    """

    starts: dict[int, Start] = {}


def leave_fingerprint(folder: Path, starts: Mapping[int, Start]) -> None:
    """Write the fingerprint of an experiment that begins, or check it if it is resumed."""
    new, old = Fingerprint(starts=dict(starts)), _read(folder)
    check_same_starts(new.starts, old.starts, str(folder))
    if new != old:
        write_text(folder / FINGERPRINT, new.model_dump_json())


def _read(folder: Path) -> Fingerprint:
    """Return the fingerprint in a folder; an empty one if it has none that can be read."""
    try:
        return Fingerprint.model_validate_json(text(folder / FINGERPRINT, follow=False))
    except (OSError, ValidationError):
        return Fingerprint()
