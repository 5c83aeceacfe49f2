"""Checks that the runs of a comparison are paired: the methods of a seed share their start, and seeds differ.

What a seed fixes is the graph, the initial parameters, and the data of each node with its order. The first two have a
checksum; the last is seen through the losses and the gradients of the first batches.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from itertools import combinations

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from mixwise.errors import ConfigError, TrainingError
from mixwise.training import Training

_SEEN = 16  # nodes whose first batch is looked at
_CLOSE = 1e-4  # to which the same sums agree, on any machine; other batches differ by more
_SEEDED = "draw from generators of the seed only, such as in ModuleTask(lambda: seeded(Net, seed), …, seed=seed)"


class Start(BaseModel):
    """What a run starts with.

    Attributes:
        graph, parameters: checksums.
        losses, gradients: of the first batch of the first nodes; of the gradients, the norms.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=True, ser_json_inf_nan="constants")
    graph: str
    parameters: str
    losses: tuple[float, ...]
    gradients: tuple[float, ...]

    def difference(self, other: Start) -> str | None:
        """Return in which way the run is not paired with another one; None if it is."""
        if self.graph != other.graph:
            return "has another graph"
        if self.parameters != other.parameters:
            return "starts from other parameters"
        for mine, theirs in ((self.losses, other.losses), (self.gradients, other.gradients)):
            same = np.shape(mine) == np.shape(theirs)
            if not (same and np.allclose(mine, theirs, rtol=_CLOSE, atol=_CLOSE * _largest(theirs), equal_nan=True)):
                return "sees other data in its first step"
        return None


def start_of(training: Training) -> Start:
    """Return what a run starts with; it must not have begun, and does not continue afterwards."""
    X, network = training.X, training.network
    parameters = _checksum(X)  # first: a task may keep the rows that it is given
    with torch.enable_grad():
        losses, G = training.task.losses_and_gradients(X, network.nodes, 0)
    norms = G[:_SEEN].detach().double().norm(dim=1)
    return Start(
        graph=f"{zlib.crc32(network.graph.edge_array.tobytes(), network.graph.n):08x}",
        parameters=parameters,
        losses=tuple(losses[:_SEEN].tolist()),
        gradients=tuple(norms.tolist()),
    )


def check_paired(starts: Mapping[tuple[int, str], Start]) -> None:
    """Reject runs, by seed and method, of which two of a seed start differently, or two seeds start alike."""
    first: dict[int, tuple[str, Start]] = {}
    for (seed, method), start in starts.items():
        other, usual = first.setdefault(seed, (method, start))
        if (how := start.difference(usual)) is not None:
            raise ConfigError(f"seed {seed}: method {method} {how} than {other}, so they cannot be compared; {_SEEDED}")
    for (seed, (_, one)), (other_seed, (_, another)) in combinations(first.items(), 2):
        if one == another:
            raise ConfigError(
                f"seeds {seed} and {other_seed} have the same parameters, data and graph, so a second seed adds "
                f"nothing; use the seed: lambda seed: ModuleTask(lambda: seeded(Net, seed), …, seed=seed)"
            )


def check_same_starts(starts: Mapping[int, Start], before: Mapping[int, Start], folder: str) -> None:
    """Reject runs that start differently from those of the same seed that are in a folder."""
    for seed, start in starts.items():
        if seed in before and (how := start.difference(before[seed])) is not None:
            raise TrainingError(
                f"seed {seed} {how} than in the runs that {folder} holds, so new and old runs cannot be compared; "
                f"{_SEEDED}, or choose another folder"
            )


def _checksum(X: torch.Tensor) -> str:
    return f"{zlib.crc32(X.detach().cpu().contiguous().numpy().tobytes()):08x}"


def _largest(values: tuple[float, ...]) -> float:
    """Return the largest finite modulus."""
    return max((abs(value) for value in values if np.isfinite(value)), default=0.0)
