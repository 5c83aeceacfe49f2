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
    assert "torch.Size([8, 162])" in shown  # what the comments beside the code say
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


@pytest.mark.parametrize("number", range(len(blocks("README.md"))))
def test_readme(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("README.md", number, blocks("README.md")[number], {})
    assert capsys.readouterr().out
