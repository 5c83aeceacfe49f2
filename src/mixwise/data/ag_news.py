"""AG News (Zhang, Zhao and LeCun 2015): titles and first sentences of news, four topics.

The layout in which its authors published it and several other sets of texts: `train.csv` and `test.csv`, a record per
line, each field in double quotes (one inside a field is doubled), first the label, counted from 1, then the texts; and
`classes.txt`, a name per line. A backslash in a text marks the end of a line, and is meaningless before $.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TypeAlias

import torch

from mixwise.data.dataset import Dataset, Splits, drawn
from mixwise.data.files import Folder, contents, data_folder
from mixwise.data.tokens import tokenized
from mixwise.errors import DataError
from mixwise.parts import part

Rows: TypeAlias = tuple[list[int], list[str]]  # labels from 0, texts


@part("ag-news", "data", title="AG News", cite="Zhang et al. 2015")
def ag_news(
    data_dir: Folder | None = None,
    *,
    tokenizer: Folder,
    max_length: int = 128,
    train_samples: int | None = None,
    test_samples: int | None = None,
) -> Splits:
    """Load 120,000 training and 7,600 test texts as tokens, title and description joined by a space.

    Args:
        data_dir: contains a folder `ag_news` with the files, or the files; by default `$MIXWISE_DATA`, else
            `~/.cache/mixwise`.
        tokenizer: the folder or the name of a pretrained model, whose tokenizer is used.
        max_length: longer texts are truncated.
        train_samples, test_samples: use a random subset of this size, always the same one; all by default.
    """
    folder = data_folder(data_dir, "ag_news")
    if data_dir is not None and not folder.is_dir() and data_folder(data_dir, "train.csv").exists():
        folder = folder.parent
    if not (folder / "train.csv").exists():
        files = "train.csv, test.csv and classes.txt of AG News (the archive ag_news_csv of Zhang et al.)"
        raise DataError(f"there is no {folder / 'train.csv'}; put {files} there, or choose another data_dir")
    listed = folder / "classes.txt"
    lines = contents(listed).decode("utf-8", "replace").split("\n") if listed.exists() else []
    names = tuple(line.strip() for line in lines if line.strip())
    train = read_csv(folder / "train.csv", len(names) or None)
    classes = len(names) or max(train[0]) + 1

    def dataset(part: str, rows: Rows, count: int | None) -> Dataset:
        labels, texts = rows
        chosen = drawn(len(labels), count, f"{part}_samples", f"{folder / part}.csv")
        samples = tokenized([texts[i] for i in chosen], tokenizer, max_length, f"AG News, {part}")
        return Dataset(samples, torch.tensor([labels[i] for i in chosen]), classes, "ag_news", names)

    test = read_csv(folder / "test.csv", classes)
    return Splits(dataset("train", train, train_samples), dataset("test", test, test_samples))


def read_csv(path: Path, classes: int | None = None) -> Rows:
    """Read labels, counted from 0, and texts from a file of this layout.

    Args:
        path: of the file.
        classes: the number of labels, if known.
    """
    lines = contents(path).removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n").split(b"\n")
    labels: list[int] = []
    texts: list[str] = []
    columns = 0
    for number, line in enumerate(lines, 1):
        try:
            fields = next(csv.reader([line.decode("utf-8").rstrip("\r")], strict=True), [])
            columns = columns or len(fields)
            if len(fields) != columns or columns < 2:
                raise ValueError(f"{len(fields)} columns, expected {max(columns, 2)}: a label and texts")
            label = int(fields[0]) if fields[0].strip().isdecimal() else 0
            if not 1 <= label <= (classes or label):
                raise ValueError(f"unknown label {fields[0]!r}, expected 1 to {classes or 'the number of classes'}")
            text = " ".join(" ".join(fields[1:]).replace("\\$", "$").replace("\\", " ").split())
            if not text:
                raise ValueError("the record has no text")
        except (ValueError, csv.Error) as error:  # also a UnicodeDecodeError
            rule = 'expected "label","title","description" in UTF-8, with "" for a quote: correct or delete the line'
            raise DataError(f"{path}, line {number}: {error}; {rule}") from None
        labels.append(label - 1)
        texts.append(text)
    return labels, texts
