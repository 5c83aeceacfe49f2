"""The report over 100 runs × 1,000 records: its size, and how long a browser takes to show it."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from mixwise.graphs import torus
from mixwise.report.page import save_page
from mixwise.seeding import numpy_generator
from mixwise.storage import sealed

from .measure import Benchmark, Contestant, Contestants, Missing

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
METRICS = (
    "loss", "consensus_distance", "heterogeneity", "gradient_mixing_error_before", "gradient_mixing_error",
    "gradient_mixing_error_relative", "relative_heterogeneity", "consensus_factor", "accuracy", "accuracy_worst",
)  # fmt: skip


def benchmarks(tiny: bool = False) -> Iterator[Benchmark]:
    runs = {"variants": 2, "seeds": 2, "records": 10} if tiny else {"variants": 20, "seeds": 5, "records": 1000}
    yield Benchmark(
        "How large is the report over 100 runs × 1,000 records?", partial(saved, runs), 15.0, better="lower",
        rounds=1, unit="MB",
    )  # fmt: skip
    yield Benchmark(
        "How long does Chromium take to show it?", partial(opened, runs), 3.0, better="lower", rounds=3, clock="wall"
    )


def saved(runs: dict[str, int]) -> Contestants:
    place, out = page(runs)
    size = out.stat().st_size / 1e6
    place.cleanup()
    return {"mixwise": Contestant(lambda _: size)}


def page(runs: dict[str, int]) -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """The report, and the folder to remove afterwards."""
    place = tempfile.TemporaryDirectory()
    folder, out = Path(place.name) / "run", Path(place.name) / "report.html"
    large_folder(folder, **runs)
    save_page([folder], out)
    return place, out


def opened(runs: dict[str, int]) -> Contestants:
    """From asking for the page until everything is drawn."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None or find_spec("playwright") is None:
        return {"mixwise": Missing("needs Chromium and pip install playwright")}
    from playwright.sync_api import sync_playwright

    place, out = page(runs)
    playwright = sync_playwright().start()
    chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])

    def show(_: int) -> None:
        tab = chromium.new_page()
        tab.goto(out.as_uri())
        tab.wait_for_selector("html[data-ready]", state="attached")
        tab.evaluate("new Promise(requestAnimationFrame)")
        tab.close()

    def end() -> None:
        chromium.close()
        playwright.stop()
        place.cleanup()

    weakref.finalize(show, end)
    return {"mixwise": Contestant(show)}


def large_folder(folder: Path, variants: int, seeds: int, records: int) -> None:
    """A run folder as a long run leaves it: every metric in every record, weights that change all the time."""
    graph, random = torus(4, 4), numpy_generator(0, "benchmark", "report")
    names = [f"variant-{v}" for v in range(variants)]
    config = {
        "name": "large",
        "metrics": ["accuracy", "loss"],
        "seeds": list(range(seeds)),
        "variants": {name: {"steps": records} for name in names},
    }
    scene = {
        "n": graph.n,
        "edges": graph.edge_array.tolist(),
        "steps": records,
        "classes": [str(k) for k in range(10)],
        "counts": random.integers(0, 300, (graph.n, 10)).tolist(),
        "data": "made",
        "steps_per_epoch": 100,
    }
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(json.dumps(config), "utf-8")
    for name in names:
        lines = [
            {"step": t, **dict(zip(METRICS, row, strict=True)), "bytes_parameters": 1e5 * t, "bytes_sketches": t}
            for t, row in enumerate(random.lognormal(size=(records, len(METRICS))).tolist())
        ]
        weights = random.integers(0, 240, (records // 5, len(graph.arcs.senders)))
        arcs = [np.stack([graph.arcs.senders, graph.arcs.receivers, row], axis=1).ravel().tolist() for row in weights]
        looks = [{"step": 5 * t, "params": [{"arcs": row}]} for t, row in enumerate(arcs)]
        first = folder / name / "seed-0"
        first.mkdir(parents=True)
        (first / "scene.json").write_text(json.dumps(scene), "utf-8")
        (first / "metrics.jsonl").write_text("".join(sealed(json.dumps(line)) + "\n" for line in lines), "utf-8")
        (first / "weights.jsonl").write_text("".join(sealed(json.dumps(look)) + "\n" for look in looks), "utf-8")
        for seed in range(1, seeds):
            shutil.copytree(first, folder / name / f"seed-{seed}")
