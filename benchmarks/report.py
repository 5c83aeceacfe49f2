"""The report over 100 runs × 1,000 records: how large it is, and how long a browser takes to show it."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.measure import Measurement, in_words
from mixwise.graphs import torus
from mixwise.report.page import save_page
from mixwise.seeding import numpy_generator

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
METRICS = (
    "loss", "consensus_distance", "heterogeneity", "gradient_mixing_error_before", "gradient_mixing_error",
    "gradient_mixing_error_relative", "relative_heterogeneity", "consensus_factor", "accuracy", "accuracy_worst",
)  # fmt: skip


def measurements() -> Iterator[Measurement]:
    """Size, and time to open."""
    with tempfile.TemporaryDirectory() as place:
        folder, out = Path(place) / "run", Path(place) / "report.html"
        large_folder(folder, variants=20, seeds=5, records=1000)
        start = time.perf_counter()
        save_page([folder], out)
        made = f"made in {in_words(time.perf_counter() - start)}"
        size = out.stat().st_size / 1e6
        yield Measurement("report over 100 runs × 1,000 records", size, "MB", 15, "lower", f"{size:.1f} MB", made)
        seconds = time_to_open(out)
        ours = "no Chromium or no Playwright here" if seconds is None else in_words(seconds)
        yield Measurement("opening it in Chromium", seconds, "s", 3, "lower", ours)


def time_to_open(page: Path, times: int = 3) -> float | None:
    """From asking for the page until everything is drawn, the median; None without a browser."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if browser is None:
        return None
    seconds = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(times):
            tab = chromium.new_page()
            start = time.perf_counter()
            tab.goto(page.as_uri())
            tab.wait_for_selector("html[data-ready]", state="attached")
            tab.evaluate("new Promise(requestAnimationFrame)")
            seconds.append(time.perf_counter() - start)
            tab.close()
        chromium.close()
    return median(seconds)


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
        (first / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        (first / "weights.jsonl").write_text("".join(json.dumps(look) + "\n" for look in looks), "utf-8")
        for seed in range(1, seeds):
            shutil.copytree(first, folder / name / f"seed-{seed}")
