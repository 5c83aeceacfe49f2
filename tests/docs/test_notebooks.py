"""The notebooks run from top to bottom, in this process and with a small budget, and show what they say."""

import json
import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
SMALL = {"compare-on-your-data": ("NODES, STEPS, SEEDS = 16, 200, 5", "NODES, STEPS, SEEDS = 4, 3, 2")}


@pytest.fixture
def execute(tmp_path, monkeypatch, capsys):
    """Runs the code cells of a notebook; returns its names and what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(name):
        cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text("utf-8"))["cells"]
        assert not any(cell.get("outputs") for cell in cells), "clear the outputs before committing a notebook"
        names = {}
        for number, cell in enumerate(cells):
            if cell["cell_type"] == "code":
                code = "".join(cell["source"])
                exec(compile(code.replace(*SMALL.get(name, ("", ""))), f"{name}, cell {number}", "exec"), names)
        plt.close("all")
        return names, capsys.readouterr().out

    return run


def test_gossip_in_ten_minutes(execute):
    names, shown = execute("gossip-in-ten-minutes")
    history = names["history"]
    assert history.sum(axis=1) == pytest.approx(12)  # mixing conserves the sum
    factor = float(re.search(r"ring:12 +factor ([\d.]+)", shown)[1])
    assert factor == pytest.approx((1 + 2 * np.cos(np.pi / 6)) / 3, abs=1e-3)  # the second eigenvalue of the ring
    left = np.linalg.norm(history - 1, axis=1)
    assert (left[1:] <= (factor + 1e-3) * left[:-1]).all()
    assert "row 0" in shown  # weights by hand that are rejected
    assert shown.rstrip().endswith(str([3.5] * 8))  # pairs on the cube are exact
    page = names["slider"]._repr_html_()
    assert page.count("<circle") == 12
    assert 'max="40"' in page


def test_compare_on_your_data(execute, tmp_path):
    names, shown = execute("compare-on-your-data")
    assert all(method in shown for method in ("gossip", "pairs", "average"))
    assert (names["run"].folder / "report.html").is_file()
    assert names["run"].folder.resolve().is_relative_to(tmp_path)
