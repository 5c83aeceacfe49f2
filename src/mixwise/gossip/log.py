"""Records of a running `Gossip`, which rank 0 writes to a run folder or passes to a logger of your own.

The folder is that of a recipe with one variant and one seed, without checkpoints; a step is a mixing.
"""

from __future__ import annotations

import re
import shlex
import sys
import weakref
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import yaml

from mixwise.errors import ConfigError, TrainingError
from mixwise.parts import kind
from mixwise.storage import make_folder, write_text
from mixwise.training import Record
from mixwise.training.checks import check_counts
from mixwise.training.record_files import METRICS, cut_run
from mixwise.training.run_log import Log, graph_scene, method_words, open_logs

if TYPE_CHECKING:
    from mixwise.gossip.gossip import Gossip

Logger: TypeAlias = Callable[[int, Mapping[str, float]], None]
"""Takes a step and its values, such as `lambda step, values: wandb.log(values, step=step)`."""


class GossipLog:
    """A record after the first mixing, and after every so many; the metrics are a collective call.

    Args:
        target: the folder to write, or a logger; used by rank 0 only.
        every: the mixings from one record to the next.
    """

    def __init__(self, target: str | Path | Logger, every: int) -> None:
        check_counts(log_every=every)
        if not (isinstance(target, str | Path) or callable(target)):
            raise TrainingError(f"log = {target!r}; pass the folder to write, or a function of a step and its values")
        self._every, self._target = every, target
        self._logs: list[Log] | None = None  # the files of the folder

    def mixed(self, gossip: Gossip) -> None:
        """Record a mixing, if it is due; all ranks must call it."""
        step = gossip.t - 1
        if step % self._every:
            return
        values = gossip.metrics()
        if gossip.rank > 0:
            return
        if isinstance(self._target, str | Path):
            self._write(Path(self._target), gossip, Record(step, dict(values), {}))
        else:
            self._target(step, values)

    def _write(self, folder: Path, gossip: Gossip, record: Record) -> None:
        try:
            if self._logs is None:
                self._logs = _opened(folder, gossip, record)
                weakref.finalize(self, _close, self._logs)
            for log in self._logs:
                log.see(record.step, gossip.plan)
                log.add(record)
                log.file.flush()
        except OSError as error:
            raise TrainingError(f"the log {folder} cannot be written: {error.strerror or error}") from None


def _close(logs: list[Log]) -> None:
    for log in logs:
        log.file.close()


def _opened(folder: Path, gossip: Gossip, record: Record) -> list[Log]:
    """Open the files of a new folder, or of that of a run which was resumed from a checkpoint."""
    name = re.sub(r"[^A-Za-z0-9_@-]+", "-", f"{kind(gossip.algorithm)}-{kind(gossip.policy)}")
    place, graph = folder / name / f"seed-{gossip.seed}", gossip.network.graph
    if folder.exists() and any(folder.iterdir()):
        if record.step == 0 or not (place / METRICS).exists():
            raise ConfigError(f"the folder {folder} is not empty, and no log is overwritten; choose another with log=…")
        cut_run(place, record.step)  # what an earlier process recorded after its last checkpoint
    method = method_words(f"a graph with {len(graph.edges)} edges", "given", gossip.policy, gossip.algorithm)
    make_folder(place)
    head = {
        "name": re.sub(r"[^A-Za-z0-9_.@-]+", "-", folder.resolve().name),
        "description": f"your own loop with mixwise.Gossip, {graph.n} ranks; a step is a mixing",
        "seeds": [gossip.seed],
        "metrics": [metric for metric in ("loss", "consensus_distance") if metric in record.values],
        "variants": {name: {"python": {**method, "local_steps": gossip.local_steps}}},
    }
    origin = f"# mixwise {version('mixwise')}, torch {version('torch')}\n# command: python {shlex.join(sys.argv)}\n"
    write_text(folder / "config.yaml", origin + yaml.safe_dump(head, sort_keys=False, allow_unicode=True))
    scene = {**graph_scene(graph, gossip.row.X.shape[1], gossip.row.X.element_size()), "steps": None, **method}
    return open_logs(place, scene, graph, t=record.step, tensorboard=find_spec("tensorboard") is not None)
