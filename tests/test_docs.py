"""The code in the documentation runs as it stands."""

import re
from pathlib import Path

import pytest

from image_trees import image_tree
from tiny_text import save_csv, save_model

ROOT = Path(__file__).parents[1]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def run(page, number, code, names):
    exec(compile(code, f"{page}, block {number}", "exec"), names)


def test_your_own_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for number, code in enumerate(blocks("docs/your-own-model.md")):  # one after the other: they belong together
        run("your-own-model.md", number, code, names)
    shown = capsys.readouterr().out
    assert "torch.Size([16, 162])" in shown  # what the comments beside the code say
    assert "\n130\n" in shown


@pytest.mark.xdist_group("transformers")
def test_text_and_images(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIXWISE_DATA", str(tmp_path))
    image_tree(tmp_path / "photos", classes=("ant", "bee"), train=20, val=4)
    save_csv(tmp_path / "ag_news")
    save_model(tmp_path / "minilm", "bert")
    names = {}
    for number, code in enumerate(blocks("docs/text-and-images.md")):
        run("text-and-images.md", number, code, names)
    shown = capsys.readouterr().out
    assert "('ant', 'bee') images of 32 × 32 pixels with 2 classes" in shown
    assert "'accuracy_worst'" in shown
    assert "numbers per node" in shown


def test_weights_for_a_graph_in_the_readme(capsys):
    _, code = blocks("README.md")  # the other one has the test below
    run("README.md", 1, code, {})
    assert [float(line) for line in capsys.readouterr().out.split()] == pytest.approx([8.0, 0.0], abs=1e-5)


def accuracies_and_bytes(shown):
    """(accuracy in percent, MB) of each line."""
    return [tuple(map(float, found)) for found in re.findall(r"accuracy ([\d.]+)% +([\d.]+) MB", shown)]


def test_the_example_of_the_readme_beats_ordinary_gossip_at_the_same_bytes(capsys):
    """And prints what stands below it, up to 3 points: rounding differs between processors, and steps amplify it."""
    text = (ROOT / "README.md").read_text("utf-8")
    printed = accuracies_and_bytes(re.search(r"^```text\n(all neighbors.*?)^```", text, flags=re.M | re.S)[1])
    run("README.md", 0, blocks("README.md")[0], {})
    (ordinary, sent), *others = shown = accuracies_and_bytes(capsys.readouterr().out)
    assert [accuracy for accuracy, _ in shown] == pytest.approx([accuracy for accuracy, _ in printed], abs=3.0)
    assert {mb for _, mb in [*shown, *printed]} == {sent}
    assert all(accuracy > ordinary + 8 for accuracy, _ in others)
