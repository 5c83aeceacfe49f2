"""fingerprint.json: what a resumed run must have in common with the runs that its folder holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ValidationError

from mixwise.errors import ConfigError
from mixwise.experiments.pairing import Start, check_same_starts
from mixwise.experiments.recipe import Experiment
from mixwise.report.divergence import DIVERGED
from mixwise.storage import text, write_text
from mixwise.training.record_files import METRICS

FINGERPRINT = "fingerprint.json"


class Fingerprint(BaseModel):
    """The fingerprint of an experiment.

    Attributes:
        starts: what each seed of a comparison starts with.
        code: of each variant, the checksums of the code outside of mixwise that it uses, by what it is used for.
    """

    starts: dict[int, Start] = {}
    code: dict[str, dict[str, str]] = {}


def leave_fingerprint(folder: Path, experiment: Experiment, starts: Mapping[int, Start]) -> None:
    """Write the fingerprint of an experiment that begins, or check it if it is resumed."""
    code = {variant: found for variant, run in experiment.runs.items() if (found := run.code())}
    new, old = Fingerprint(starts=dict(starts), code=code), _read(folder)
    for variant, found in new.code.items():
        _check_code(folder, experiment, variant, found, old.code.get(variant, {}))
    check_same_starts(new.starts, old.starts, str(folder))
    if new != old:
        write_text(folder / FINGERPRINT, new.model_dump_json())


def _read(folder: Path) -> Fingerprint:
    """Return the fingerprint in a folder; an empty one if it has none that can be read."""
    try:
        return Fingerprint.model_validate_json(text(folder / FINGERPRINT, follow=False))
    except (OSError, ValidationError):
        return Fingerprint()


def _check_code(
    folder: Path, experiment: Experiment, variant: str, code: Mapping[str, str], before: Mapping[str, str]
) -> None:
    """Reject code that has changed since seeds of its variant were run."""
    changed = [name for name, checksum in code.items() if before.get(name, checksum) != checksum]
    seeds = [seed for seed in experiment.recipe.seeds if _has_begun(folder / variant / f"seed-{seed}")]
    if changed and seeds:
        listed = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        raise ConfigError(
            f"the code of the {' and the '.join(changed)} of {variant} is not the one that {listed} in {folder} ran "
            f"with; restore it, remove {folder / variant} to run {variant} again, or choose another folder"
        )


def _has_begun(place: Path) -> bool:
    metrics = place / METRICS
    return (place / DIVERGED).exists() or (metrics.exists() and metrics.stat().st_size > 0)
