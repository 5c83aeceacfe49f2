"""Whether a state that was saved belongs here."""

from __future__ import annotations

from typing import Any

from mixwise.errors import TrainingError


def objection(values: dict[str, Any], rank: int, world: int, parameters: int) -> TrainingError | None:
    """Why the state with these values cannot be loaded on this rank, whose parameters have this checksum."""
    if (values["rank"], values["world"]) != (rank, world):
        return TrainingError(
            f"this is the state of rank {values['rank']} of {values['world']}, loaded on rank {rank} of {world}; "
            f"every rank saves and loads its own"
        )
    if values["parameters"] != parameters:
        return TrainingError(
            "the parameters are not those that were saved with this state; after making Gossip, load what was saved "
            "together: first the state dict of the model, then of the optimizer, then of Gossip"
        )
    return None
