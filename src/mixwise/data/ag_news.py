"""AG News (Zhang, Zhao and LeCun 2015): titles and first sentences of news, four topics.

The layout in which its authors have published it and several other sets of texts: `train.csv` and `test.csv`, a record
per line, each field in double quotes (one inside a field is doubled), the label from 1 on first, then the texts; and
`classes.txt`, a name per line. A backslash in a text stands where a line ended, and before $ for nothing.
"""

from __future__ import annotations

import csv
from pathlib import Path

import torch

from mixwise.data.dataset import Dataset, Splits
from mixwise.data.drawn import drawn
from mixwise.data.files import Folder, contents, data_folder
from mixwise.data.tokenizer import Tokenizer
from mixwise.data.tokens import tokenized
from mixwise.errors import DataError
from mixwise.parts import part

Rows = tuple[list[int], list[str]]  # labels from 0, texts


@part("ag-news", "data", title="AG News", cite="Zhang et al. 2015")
def ag_news(
    data_dir: Folder | None = None,
    *,
    tokenizer: str | Path | Tokenizer,
    max_length: int = 128,
    train_samples: int | None = None,
    test_samples: int | None = None,
) -> Splits:
    """120,000 training and 7,600 test texts as tokens, title and description joined by a space.

    Args:
        data_dir: holds a folder `ag_news` with the files, or the files; by default `$MIXWISE_DATA`, else
            `~/.cache/mixwise`.
        tokenizer: the folder or the name of the pretrained model whose tokens they become.
        max_length: longer texts are cut.
        train_samples, test_samples: take so many, drawn once and for all; all by default.
    """
    folder = data_folder(data_dir, "ag_news")
    if not folder.is_dir() and data_dir is not None and (Path(data_dir).expanduser() / "train.csv").exists():
        folder = Path(data_dir).expanduser()
    if not (folder / "train.csv").exists():
        raise DataError(
            f"there is no {folder / 'train.csv'}; put train.csv, test.csv and classes.txt of AG News "
            f"(the archive ag_news_csv of Zhang et al.) there, or choose another folder with data_dir"
        )
    names = _class_names(folder / "classes.txt")
    labels, texts = read_csv(folder / "train.csv", len(names) or None)
    classes = len(names) or max(labels) + 1
    parts: list[Dataset] = []
    for rows, count in (((labels, texts), train_samples), (read_csv(folder / "test.csv", classes), test_samples)):
        part = "train" if not parts else "test"
        chosen = drawn(len(rows[0]), count, f"{part}_samples", f"{folder / part}.csv")
        samples = tokenized([rows[1][i] for i in chosen], tokenizer, max_length, f"AG News, {part}")
        y = torch.tensor([rows[0][i] for i in chosen], dtype=torch.int64)
        parts.append(Dataset(samples, y, classes, "ag_news", names))
    return Splits(*parts)


def read_csv(path: Path, classes: int | None = None) -> Rows:
    """Labels, counted from 0, and texts.

    Args:
        path: a file of this layout.
        classes: how many labels there are; not known by default.
    """
    lines = contents(path).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1].strip():
        lines.pop()
    if not lines:
        raise DataError(f'{path} is empty; it has a line per text: "label","title","description"')
    labels: list[int] = []
    texts: list[str] = []
    columns = 0
    for number, line in enumerate(lines, 1):
        try:
            fields = _fields(line)
            columns = columns or len(fields)
            labels.append(_label(fields, columns, classes))
            texts.append(_joined(fields[1:]))
        except DataError as error:
            raise DataError(f"{path}, line {number}: {error}") from None
    return labels, texts


def _fields(line: bytes) -> list[str]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"byte {error.start + 1} is not UTF-8; save the file in that encoding, or delete the line"
        ) from None
    try:
        fields = next(csv.reader([text.rstrip("\r")], strict=True), [])
    except csv.Error as error:
        raise DataError(
            f'broken ({error}); a record is one line of fields in double quotes, with "" for a quote inside: '
            f"repair or delete it"
        ) from None
    if not fields:
        raise DataError("the line is empty; delete it")
    return fields


def _label(fields: list[str], columns: int, classes: int | None) -> int:
    if len(fields) != columns or columns < 2:
        expected = columns if columns >= 2 else "2 or more"
        raise DataError(f"{len(fields)} columns, expected {expected}: a label and texts, separated by commas")
    label = int(fields[0]) if fields[0].strip().isdecimal() else 0
    if label < 1 or (classes is not None and label > classes):
        allowed = f"1 to {classes}" if classes is not None else "whole numbers from 1 on"
        raise DataError(f"unknown label {fields[0]!r}, expected {allowed}; correct it, or delete the line")
    return label - 1


def _joined(fields: list[str]) -> str:
    text = " ".join(" ".join(fields).replace("\\$", "$").replace("\\", " ").split())
    if not text:
        raise DataError("no text in it; delete the line")
    return text


def _class_names(path: Path) -> tuple[str, ...]:
    """The names of the labels, if the file is there."""
    if not path.exists():
        return ()
    try:
        names = contents(path).decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8; save it in that encoding, a name per line") from None
    return tuple(name.strip() for name in names if name.strip())
