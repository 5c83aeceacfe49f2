"""Checkpoints: one safetensors file with the plain values as JSON in its header. Loading one never runs code.

A checkpoint is written beside its place and then moved there, so that a run that is killed at any moment leaves
either the old one or the new one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mixwise.errors import TrainingError
from mixwise.train.training import Training


def save_checkpoint(training: Training, path: Path) -> None:
    """Everything that the next step depends on, written atomically."""
    tensors, values = training.state()
    temporary = path.with_suffix(".part")
    try:
        save_file({name: v.contiguous() for name, v in tensors.items()}, temporary, {"mixwise": json.dumps(values)})
        os.replace(temporary, path)
    except (SafetensorError, OSError) as error:
        temporary.unlink(missing_ok=True)
        raise TrainingError(f"the checkpoint {path} cannot be written: {error}; the one before it is kept") from None


def load_checkpoint(training: Training, path: Path) -> None:
    """Put a freshly made training where the checkpoint was."""
    try:
        with safe_open(path, framework="pt") as file:
            values = json.loads(file.metadata()["mixwise"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
        training.load_state(tensors, values)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise TrainingError(
            f"the checkpoint {path} does not fit this run ({error}); delete its folder to start that run anew"
        ) from None
