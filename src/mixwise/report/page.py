"""One self-contained HTML page about one or several run folders: template/ with the data in it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from html import escape
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mixwise.errors import ConfigError
from mixwise.report.columns import columns, rounded
from mixwise.report.folder import Cache, Run, RunFolder, read_folders
from mixwise.report.metric_names import X_AXES, in_order, metric_name
from mixwise.report.moving_weights import graph_of, moving_weights, numbers_of
from mixwise.report.narrative import in_bytes, narrative
from mixwise.report.positions import positions
from mixwise.report.standings import Standings, is_number, standings
from mixwise.report.table import Cell

# In the order in which they are put together: later ones use what earlier ones define.
SCRIPTS = (
    "dom.js", "format.js", "model.js", "results.js", "curves.js", "frames.js", "ribbons.js", "heat.js", "network.js",
    "partition.js", "making.js", "main.js",
)  # fmt: skip
_MOST_POINTS = 600  # of a curve: a screen has no more columns for it
_MOST_VALUES = 700_000  # of all curves together
_MOST_LETTERS = 4_000_000  # of all weights together
_MOST_PROBLEMS = 12  # in a list that people read


def save_page(folders: Sequence[Path], out: Path) -> list[RunFolder]:
    """Write the report of these run folders; what was read of them."""
    found = read_folders(list(folders))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page(page_data(found)), "utf-8")
    except OSError as error:
        raise ConfigError(f"the report {out} cannot be written: {error.strerror}; choose another with --out") from None
    return found


def live_data(folders: Sequence[Path], cache: Cache) -> dict[str, Any]:
    """The data of a page that is looked at while the runs go on."""
    found = read_folders(list(folders), cache)
    return {**page_data(found), "live": True, "running": not all(folder.finished for folder in found)}


def page(data: dict[str, Any]) -> str:
    """The page with its data; scripts and styles are allowed by their hash, so that nothing else can run."""
    template = resources.files("mixwise.report") / "template"
    style = (template / "style.css").read_text("utf-8")
    parts = [(template / name).read_text("utf-8") for name in SCRIPTS]
    script = "'use strict';\n(() => {\n" + "\n".join(parts) + "\n})();"
    policy = (
        f"default-src 'none'; img-src data:; connect-src 'self'; "
        f"style-src 'sha256-{_digest(style)}'; script-src 'sha256-{_digest(script)}'"
    )
    filled = (template / "page.html").read_text("utf-8")
    values = {"policy": policy, "title": escape(f"{data['title']} – mixwise"), "style": style, "script": script}
    for name, text in values.items():
        filled = filled.replace(f"{{{{{name}}}}}", text, 1)
    return filled.replace("{{data}}", in_html(data), 1)


def in_html(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in, whatever users have written."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# --- what the page shows ---
def page_data(folders: list[RunFolder]) -> dict[str, Any]:
    """Everything that the page shows, as JSON holds it."""
    names = _experiment_names(folders)
    scenes = _Scenes()
    experiments: list[dict[str, Any]] = []
    variants: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    metrics = in_order(_found_metrics(folders), [metric for folder in folders for metric in folder.metrics])
    count = max(1, sum(len(folder.runs) for folder in folders))
    points = max(50, min(_MOST_POINTS, _MOST_VALUES // (count * max(1, len(metrics)))))
    letters = sum(numbers_of(run) for folder in folders for run in folder.runs)
    looks = max(10, min(200, int(200 * _MOST_LETTERS / max(1, letters))))
    for folder, name in zip(folders, names, strict=True):
        table = standings(folder)
        first = len(variants)
        ranks = {row.variant: rank for rank, row in enumerate(table.ranked())} if table.metrics else {}
        gossip = [row for row in table.ranked() if row.gossip] if table.metrics else []
        baseline = next((row.variant for row in gossip if row.plain), None)
        for row in table.rows:
            shown = row.variant if len(folders) == 1 else f"{name}: {row.variant}"
            mine = folder.of(row.variant)
            variants.append(
                {
                    "name": shown,
                    "note": _method(mine),
                    "rank": ranks.get(row.variant, len(ranks)),
                    "baseline": row.variant == baseline,
                    "plain": row.plain,
                }
            )
            for run, groups in zip(mine, columns(mine, metrics, points), strict=True):
                runs.append(_run(run, len(variants) - 1, groups, scenes, looks))
                if run.weights and run.scene is not None and runs[-1]["weights"] is None:
                    folder.problems.append(f"{run.variant}, seed {run.seed}: weights.jsonl does not fit the graph")
        experiments.append(_experiment(folder, name, table, first))
    curves = {name for run in runs for group in run["groups"] if len(group["steps"]) > 1 for name in group["y"]}
    return {
        "version": version("mixwise"),
        "title": " and ".join(names) if names else "nothing",
        "experiments": experiments,
        "metrics": [{**metric_name(key)._asdict(), "curve": key in curves} for key in metrics],
        "variants": variants,
        "runs": runs,
        "scenes": scenes.listed,
    }


def _experiment_names(folders: list[RunFolder]) -> list[str]:
    names = [folder.name for folder in folders]
    return [
        name if names.count(name) == 1 else f"{name} ({folder.path.resolve().name})"
        for folder, name in zip(folders, names, strict=True)
    ]


def _found_metrics(folders: list[RunFolder]) -> set[str]:
    return {
        name
        for folder in folders
        for run in folder.runs
        for record in [*run.records[:3], *run.records[-3:]]
        for name, value in record.items()
        if name != "step" and name not in X_AXES and is_number(value)
    }


def _experiment(folder: RunFolder, name: str, table: Standings, first: int) -> dict[str, Any]:
    """A folder's table, story and origin."""
    metrics = [metric_name(metric) for metric in table.metrics]
    rows = [
        {
            "name": row.variant,
            "variant": first + v,
            "note": _method(folder.of(row.variant)),
            "cells": [_cell(cell, metrics[c].percent, table.best(c)) for c, cell in enumerate(row.cells)],
            "bytes": row.bytes_per_node,
        }
        for v, row in enumerate(table.rows)
    ]
    hidden = len(folder.problems) - _MOST_PROBLEMS
    return {
        "name": name,
        "description": folder.description,
        "story": narrative(folder, table),
        "figures": _figures(folder, table),
        "metrics": [metric._asdict() for metric in metrics],
        "rows": rows,
        "caption": _caption(folder, table),
        "problems": folder.problems[:_MOST_PROBLEMS] + ([f"and {hidden} more"] if hidden > 0 else []),
        "command": folder.command or ("mixwise run config.yaml" if folder.config else ""),
        "how": _how(folder),
        "config": folder.config,
        "versions": folder.versions,
    }


def _cell(cell: Cell | None, percent: bool, best: float | None) -> dict[str, Any] | None:
    if cell is None or not math.isfinite(cell.mean):
        return None
    text = str(cell)
    if percent:
        text = f"{100 * cell.mean:.1f}" + ("" if cell.std is None else f" ± {100 * cell.std:.1f}") + " %"
    return {"mean": rounded(cell.mean, 8), "std": rounded(cell.std, 8) if cell.std is not None else None,
            "text": text, "best": cell.mean == best}  # fmt: skip


def _caption(folder: RunFolder, table: Standings) -> str:
    steps = f"{table.steps[:1].upper()}{table.steps[1:]}; " if table.steps else ""
    seeds = ", ".join(map(str, folder.seeds))
    over = f"mean ± standard deviation over {len(folder.seeds)} seeds ({seeds})" if len(folder.seeds) > 1 else ""
    unfinished = [row.variant for row in table.rows if not row.finished]
    note = f" Not finished: {', '.join(unfinished)}." if unfinished else ""
    return f"{steps}{over or f'seed {seeds}'}. ★ marks the best of each column.{note}"


def _how(folder: RunFolder) -> str:
    if not folder.config:
        return "config.yaml is missing, so the command is not known."
    again = (
        "The configuration below is itself a recipe: saved as config.yaml, mixwise run config.yaml gives the same runs."
    )
    return again + " The same seeds give the same records, bit for bit, on the same machine and versions."


def _figures(folder: RunFolder, table: Standings) -> list[tuple[str, str]]:
    """A few numbers for the top of the page."""
    scene = next((run.scene for run in folder.runs if run.scene is not None), None)
    found = [("variants", str(len(table.rows))), ("seeds each", str(len(folder.seeds)))]
    if scene is not None:
        found.append((f"nodes on {scene.get('graph', 'a graph')}", str(scene["n"])))
        if is_number(scene.get("row_bytes")):
            found.append(("in one message of parameters", in_bytes(scene["row_bytes"])))
        if is_number(scene.get("steps")):
            found.append(("steps", f"{scene['steps']:,}"))
    return found if folder.runs else []


def _method(runs: list[Run]) -> str:
    scene = next((run.scene for run in runs if run.scene is not None), None)
    if scene is None:
        return ""
    return ", ".join(str(scene[key]) for key in ("algorithm", "policy") if scene.get(key))


# --- runs and scenes ---
def _run(run: Run, variant: int, groups: list[dict[str, Any]], scenes: _Scenes, looks: int) -> dict[str, Any]:
    weights = moving_weights(run, looks)
    return {
        "variant": variant,
        "seed": run.seed,
        "done": run.done,
        "groups": groups,
        "scene": scenes.index(run.scene),
        "weights": weights,
    }


class _Scenes:
    """The scenes of all runs, each once: the variants of one seed share them."""

    def __init__(self) -> None:
        self.listed: list[dict[str, Any]] = []
        self._known: dict[str, int] = {}

    def index(self, scene: dict[str, Any] | None) -> int | None:
        """Which one it is."""
        if scene is None:
            return None
        shown = {key: scene.get(key) for key in ("n", "directed", "edges", "labels", "data", "counts", "classes")}
        key = json.dumps(shown, sort_keys=True)
        if key not in self._known:
            self._known[key] = len(self.listed)
            xy = positions(graph_of(scene))
            epoch = scene.get("steps_per_epoch")
            self.listed.append(
                {
                    **shown,
                    "edges": [int(end) for edge in scene["edges"] for end in edge],
                    "xy": None if xy is None else [round(float(v), 4) for v in xy.reshape(-1)],
                    "epoch": epoch if is_number(epoch) and epoch > 0 else None,
                }
            )
        return self._known[key]
