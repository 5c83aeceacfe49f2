"""One self-contained HTML page about one or several run folders: the files of template/ and the data in one file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from mixwise.graphs.drawing import is_drawable, layout
from mixwise.report.divergence import count_in_words
from mixwise.report.folder import Run, RunFolder, read_folders
from mixwise.report.narrative import in_bytes, narrative
from mixwise.report.records import X_AXES, Steps, columns, in_order, is_number, metric_name, rounded
from mixwise.report.table import Row, Table, tabulate
from mixwise.report.weights import graph_of, packed_nodes, packed_size, packed_weights
from mixwise.storage import write_text

# In the order in which they are joined: later files use names that earlier ones define.
SCRIPTS = (
    "dom.js", "format.js", "model.js", "results.js", "curves.js", "frames.js", "ribbons.js", "heat.js", "network.js",
    "partition.js", "reproduce.js", "main.js",
)  # fmt: skip
_MAX_POINTS = 600  # of a curve: a screen has no more columns for it
_MAX_VALUES = 700_000  # of all curves together
_MAX_LETTERS = 4_000_000  # of all weights together
_MAX_PROBLEMS = 12  # shown in full


def save_page(folders: Sequence[Path], out: Path) -> list[RunFolder]:
    """Write the report of these run folders; returns what was read."""
    found = read_folders(folders)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, page(page_data(found)))
    return found


def page(data: dict[str, Any]) -> str:
    """The page with its data; its script and style are allowed by their hashes, so that nothing else can run."""
    template = resources.files("mixwise.report") / "template"
    style = (template / "style.css").read_text("utf-8")
    parts = [(template / name).read_text("utf-8") for name in SCRIPTS]
    script = "'use strict';\n(() => {\n" + "\n".join(parts) + "\n})();"
    policy = (
        f"default-src 'none'; img-src data:; connect-src 'self'; "
        f"style-src 'sha256-{_digest(style)}'; script-src 'sha256-{_digest(script)}'"
    )
    title = escape(f"{data['title']} – mixwise")
    values = {"policy": policy, "title": title, "style": style, "script": script, "data": in_html(data)}
    return re.sub(r"\{\{(\w+)\}\}", lambda name: values[name[1]], (template / "page.html").read_text("utf-8"))


def in_html(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element around it, whatever names users have chosen."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# --- the data of the page ---
def page_data(folders: list[RunFolder]) -> dict[str, Any]:
    """Everything that the page shows about these folders, as one JSON value; a run has the number of its row."""
    runs_read = [run for folder in folders for run in folder.runs]
    metrics = in_order(_recorded_metrics(runs_read), [metric for folder in folders for metric in folder.metrics])
    points = max(50, min(_MAX_POINTS, _MAX_VALUES // max(1, len(runs_read) * len(metrics))))
    looks = max(10, min(200, 200 * _MAX_LETTERS // max(1, sum(map(packed_size, runs_read)))))
    names = _distinct_names(folders)
    scenes: dict[str, dict[str, Any]] = {}  # listed once: the variants of one seed share theirs
    experiments: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    parts = [(part, name) for folder, name in zip(folders, names, strict=True) for part in folder.by_topology()]
    for folder, name in parts:
        table, first = tabulate(folder), sum(len(each["rows"]) for each in experiments)
        for v, variant in enumerate(table.rows, first):
            mine = folder.of(variant)
            curves = columns([_drawn(run) for run in mine], metrics, points, folder.window)
            for run, groups in zip(mine, curves, strict=True):
                weights = packed_weights(run, looks)
                if weights is None and run.weights and run.scene is not None:
                    folder.problems.append(f"{run.variant}, seed {run.seed}: weights.jsonl does not fit the graph")
                place = {"variant": v, "scene": _scene_index(run.scene, scenes)}
                shown = {"groups": groups, "weights": weights, "nodes": packed_nodes(run)}
                runs.append({**place, "seed": run.seed, "done": run.done, **shown})
        experiments.append(_experiment(folder, name, table, several=len(folders) > 1))
    drawn = {name for run in runs for group in run["groups"] if len(group["steps"]) > 1 for name in group["y"]}
    return {
        "version": version("mixwise"),
        "title": " and ".join(names) or "nothing",
        "experiments": experiments,
        "metrics": [{**metric_name(key)._asdict(), "curve": key in drawn} for key in metrics],
        "runs": runs,
        "scenes": list(scenes.values()),
    }


def _drawn(run: Run) -> Steps:
    """The records of a run that its curves show: none if it has diverged, as it is not part of the averages."""
    return run.records if run.divergence is None else []


def _recorded_metrics(runs: list[Run]) -> set[str]:
    """The numbers in the first and last records: some metrics are not evaluated at every step."""
    records = [record for run in runs for record in [*run.records[:3], *run.records[-3:]]]
    return {name for record in records for name, value in record.items() if is_number(value)} - {"step", *X_AXES}


def _distinct_names(folders: list[RunFolder]) -> list[str]:
    names = [folder.name for folder in folders]
    return [
        name if names.count(name) == 1 else f"{name} ({folder.path.resolve().name})"
        for folder, name in zip(folders, names, strict=True)
    ]


def _experiment(folder: RunFolder, name: str, table: Table, several: bool) -> dict[str, Any]:
    """What the page shows about a folder, or about one of its topologies; with `several` folders, each name has its."""
    prefix, separate = f"{name}: " * several, bool(folder.topology)
    hidden, ranked, differences = len(folder.problems) - _MAX_PROBLEMS, table.ranked(), table.differences()
    command = folder.comment("command: ").removeprefix("command: ")
    return {
        "name": f"{prefix}{folder.topology}" if separate else name,
        "folder": name,
        "separate": separate,  # its variants are not compared with those of other experiments
        "description": folder.description,
        "story": narrative(folder, table),
        "figures": _key_figures(folder, table),
        "metrics": [metric_name(metric)._asdict() for metric in table.metrics],
        "rows": [
            {
                "name": prefix + row.variant,  # different from all others on the page
                "short": row.variant.removeprefix(f"{folder.topology}/"),
                "note": _note(row),
                "rank": ranked.index(row) if row in ranked else len(ranked),
                "baseline": row is table.baseline and row.plain,
                "reference": row.reference,
                "plain": row.plain,
                "control": None if (control := _control(row, ranked)) is None else prefix + control.variant,
                "cells": [_cell(table, row, column) for column in range(len(table.metrics))],
                "bytes": row.bytes_per_node,
                "difference": differences.get(row.variant),
                "diverged": count_in_words(len(row.diverged), row.seeds) if row.diverged else None,
            }
            for row in table.rows.values()
        ],
        "caption": _caption(table, bool(differences)),
        "problems": folder.problems[:_MAX_PROBLEMS] + ([f"and {hidden} more"] if hidden > 0 else []),
        "command": command or ("mixwise run config.yaml" if folder.config and not folder.python else ""),
        "python": folder.python,
        "config": folder.config,
        "versions": folder.comment("mixwise "),
    }


def _note(row: Row) -> str:
    """The method of a variant in words."""
    method = ", ".join(str(row.scene[key]) for key in ("algorithm", "policy") if row.scene.get(key))
    method += ", on edges that the graph does not have" if row.leaves_graph else ""
    return f"control ({row.control}): {method}" if row.control else method


def _control(row: Row, ranked: list[Row]) -> Row | None:
    """The variant that a method is compared with: the best one with its algorithm and Metropolis-Hastings weights."""
    kinds = row.kinds[0], "metropolis-hastings"
    return next((each for each in ranked if each is not row and each.kinds == kinds), None)


def _cell(table: Table, row: Row, column: int) -> dict[str, Any] | None:
    if (cell := row.cells[column]) is None:
        return None
    return {
        "mean": rounded(cell.mean, 8),
        "std": None if cell.std is None else rounded(cell.std, 8),
        "text": cell.text(metric_name(table.metrics[column]).percent),
        "best": table.is_best(row, column),
    }


def _caption(table: Table, compared: bool) -> str:
    unfinished = [row.variant for row in table.rows.values() if not row.finished]
    note = f" {table.comparison}." if compared else ""
    note += f" Not finished: {', '.join(unfinished)}." if unfinished else ""
    note += "".join(f" {text}." for text in [*table.divergences(), *table.failed_solves()])
    return f"{table.caption}. ★ marks the best of each column.{note}"


def _key_figures(folder: RunFolder, table: Table) -> list[tuple[str, str]]:
    """A few numbers for the top of the page."""
    if not folder.runs:
        return []
    found = [("variants", str(len(table.rows))), ("seeds each", str(len(folder.seeds)))]
    if scene := next((row.scene for row in table.rows.values() if row.scene), {}):
        graph = str(scene.get("graph", "a graph"))
        place = Path(graph).name if graph.startswith("file:") else graph
        found.append((f"nodes on {place}", str(scene.get("of") or scene["n"])))
    if is_number(scene.get("row_bytes")):
        found.append(("per parameter message", in_bytes(scene["row_bytes"])))
    if is_number(scene.get("steps")):
        found.append(("steps", f"{scene['steps']:,}"))
    lost = [run.records[-1]["messages_lost"] for run in folder.runs if "messages_lost" in (run.records or [{}])[-1]]
    if lost:
        found.append(("of the messages lost", f"{100 * float(np.mean(lost)):.1f} %"))
    away = [record["nodes_away"] for run in folder.runs for record in run.records if "nodes_away" in record]
    if away:
        found.append(("nodes away on average", f"{float(np.mean(away)):.2g}"))
    return found


def _scene_index(scene: dict[str, Any] | None, scenes: dict[str, dict[str, Any]]) -> int | None:
    """The place of a scene among the listed ones, by content, to which it is added if it is new."""
    if scene is None:
        return None
    shown = {key: scene.get(key) for key in ("n", "labels", "data", "counts", "classes", "of", "degrees")}
    key = json.dumps([shown, scene["edges"], scene.get("directed"), scene.get("positions")], sort_keys=True)
    if key not in scenes:
        graph, epoch = graph_of(scene), scene.get("steps_per_epoch")
        scenes[key] = {
            **shown,
            "edges": graph.edge_array.ravel().tolist(),
            "xy": layout(graph).round(4).ravel().tolist() if is_drawable(graph) else None,
            "epoch": epoch if is_number(epoch) and epoch > 0 else None,
        }
    return list(scenes).index(key)
