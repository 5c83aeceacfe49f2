"""Any dataset of Hugging Face `datasets`, from disk or from the hub: texts or images with one label each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mixwise.data.dataset import Dataset, Samples, Splits, drawn
from mixwise.data.decoding import Source
from mixwise.data.files import Folder, hub_folder, loading, optional
from mixwise.data.images import IMAGENET_MEAN, IMAGENET_STD, Colors, ImageForm, ImageSamples
from mixwise.data.tokens import Text, tokenized
from mixwise.errors import DataError
from mixwise.parts import part

_TESTS = ("test", "validation", "valid", "val")
_LABELS = ("label", "labels", "class", "category", "target", "fine_label")
_TEXTS = ("text", "sentence", "content", "document", "review")


@part("hugging-face", "data", title="dataset of the Hugging Face hub")
def hugging_face(
    name: str | None = None,
    data_dir: Folder | None = None,
    *,
    config: str | None = None,
    revision: str | None = None,
    train: str = "train",
    test: str | None = None,
    text: str | Sequence[str] | None = None,
    image: str | None = None,
    label: str | None = None,
    tokenizer: Folder | None = None,
    max_length: int = 128,
    size: int = 224,
    augment: bool = True,
    mean: Colors | None = IMAGENET_MEAN,
    std: Colors | None = IMAGENET_STD,
    workers: int | None = None,
    train_samples: int | None = None,
    test_samples: int | None = None,
) -> Splits:
    """Load the training and the test split of a dataset; columns that are not named are inferred if they are clear.

    Args:
        name: a folder written by `save_to_disk` or with parquet, csv or json files; such a folder in `data_dir`; or a
            name on the hub. Without a name, `data_dir` is the folder.
        data_dir: by default `$MIXWISE_DATA`, else `~/.cache/mixwise`.
        config: the configuration of the dataset, if it has several.
        revision: the commit, tag or branch on the hub, so that a run can be repeated; by default its main branch.
        train, test: the names of the splits; by default "train", and the first of test, validation, valid and val.
        text: the column of the texts, or the two columns of pairs of texts.
        image: the column of the images.
        label: the column of the labels: numbers, names, or a `ClassLabel`.
        tokenizer: for texts: the folder or the name of a pretrained model, whose tokenizer is used.
        max_length: longer texts are truncated.
        size, augment, mean, std, workers: for images, as in `image_folder`.
        train_samples, test_samples: use a random subset of this size, always the same one; all by default.
    """
    shown = str(name or data_dir or "")
    if not shown:
        raise DataError("no dataset is given; name its folder or its name on the hub with name=…")
    splits = _loaded(hub_folder(shown, "dataset", data_dir, revision), config)
    test = test or next((split for split in _TESTS if split in splits), "test")
    for option, split in (("train", train), ("test", test)):
        if split not in splits:
            raise DataError(f"{shown} has no split {split!r}; it has {', '.join(splits)}: name one with {option}=…")
    inputs, label, has_images = _columns(splits[train].features, text, image, label, shown)
    numbers, names = _classes(splits[train], label, shown)
    form = ImageForm(size, augment, mean, std)

    def dataset(split: str, rows: Any, count: int | None) -> Dataset:
        if missing := [column for column in (*inputs, label) if column not in rows.features]:
            raise DataError(f"{shown}: the {split} split has no column {missing[0]!r}, but the other has")
        chosen = drawn(len(rows), count, f"{split}_samples", shown)
        rows = rows if count is None else rows.select(chosen)
        labels = rows[label][:]
        if (row := next((i for i, value in enumerate(labels) if value not in numbers), None)) is not None:
            rule = f"the training split has {', '.join(names[:10])}{', …' * (len(names) > 10)}: leave out such rows"
            raise DataError(f"{shown}, {split}, row {row}: unknown label {labels[row]!r} in {label!r}; {rule}")
        x: Samples
        if has_images:
            x = ImageSamples(HubImages(rows, inputs[0], shown), form, workers)
        elif tokenizer is None:
            raise DataError(f"{shown} contains texts; name the model whose tokenizer is to be used with tokenizer=…")
        else:
            x = tokenized(_texts(rows, inputs, shown), tokenizer, max_length, shown)
        return Dataset(x, torch.tensor([numbers[value] for value in labels]), len(names), shown, names)

    return Splits(dataset("train", splits[train], train_samples), dataset("test", splits[test], test_samples))


def _columns(
    features: Any, text: str | Sequence[str] | None, image: str | None, label: str | None, shown: str
) -> tuple[list[str], str, bool]:
    """Return the columns of the inputs, the column of the labels, and whether the inputs are images."""
    kinds = {name: type(feature).__name__ for name, feature in features.items()}
    dtypes = {name: getattr(feature, "dtype", kinds[name]) for name, feature in features.items()}

    def named(what: str, given: str | None, *candidates: list[str]) -> str:
        """Return the column that is given, or the only one among the first candidates."""
        found = [given] if given is not None else next(filter(None, candidates), [])
        if len(found) == 1 and found[0] in kinds:
            return found[0]
        listed = ", ".join(f"{name} ({dtype})" for name, dtype in dtypes.items())
        wrong = f"it is unclear which contains the {what}" if given is None else f"{what} = {given!r} is none of them"
        raise DataError(f"{shown} has the columns {listed}; {wrong}: name it with {what}=…")

    labeled = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    usual = [name for name in _LABELS if name in kinds][:1]
    label = named("label", label, labeled if len(labeled) == 1 else [], usual)
    images = [name for name, kind in kinds.items() if kind == "Image"]
    if image is not None or (images and text is None):
        return [named("image", image, images)], label, True
    strings = [name for name, dtype in dtypes.items() if dtype in ("string", "large_string") and name != label]
    given = [text] if isinstance(text, str) or text is None else list(text)
    if len(given) not in (1, 2):
        raise DataError(f"text = {text!r}; give one column, or two for pairs of texts")
    usual = [name for name in _TEXTS if name in strings][:1]
    return [named("text", column, usual, strings) for column in given], label, False


def _classes(train: Any, column: str, shown: str) -> tuple[dict[Any, int], tuple[str, ...]]:
    """Return the number of each label, and the names of the classes."""
    if type(feature := train.features[column]).__name__ == "ClassLabel":
        return {i: i for i in range(len(feature.names))}, tuple(feature.names)
    values = sorted({value for value in train[column][:] if value is not None}, key=lambda v: (str(type(v)), v))
    if any(not isinstance(value, int | str) for value in values):
        raise DataError(f"{shown}: column {column!r} contains {values[0]!r}; labels are whole numbers or names")
    if values and all(isinstance(value, int) for value in values) and values[0] >= 0:
        values = list(range(values[-1] + 1))  # numbers keep their meaning
    return {value: i for i, value in enumerate(values)}, tuple(map(str, values))


class HubImages:
    """The images of a column, still encoded; an `ImageSource`."""

    def __init__(self, rows: Any, column: str, shown: str) -> None:
        datasets = optional("datasets", "hub")
        self._rows, self._column, self._shown = rows.cast_column(column, datasets.Image(decode=False)), column, shown

    def __len__(self) -> int:
        return len(self._rows)

    def source(self, index: int) -> Source:
        """Return the bytes of a file, or its path."""
        found = self._rows[index][self._column] or {}
        encoded: Source | None = found.get("bytes") or found.get("path")
        if encoded is None:
            raise DataError(f"{self.name(index)}: there is no image; leave out the row")
        return encoded

    def name(self, index: int) -> str:
        """Return the dataset and the row, for error messages."""
        return f"{self._shown}, row {index}"


def _loaded(folder: Path, config: str | None) -> dict[str, Any]:
    """Return the splits of a dataset by name."""
    datasets = optional("datasets", "hub")
    rule = "expected the output of save_to_disk, or parquet, csv or json files"
    with loading(f"{folder} cannot be read as a dataset", rule):
        if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
            found = datasets.load_from_disk(str(folder))
        else:
            found = datasets.load_dataset(str(folder), config)
    return {"train": found} if isinstance(found, datasets.Dataset) else dict(found)


def _texts(rows: Any, columns: list[str], shown: str) -> list[Text]:
    found = [rows[column][:] for column in columns]
    for column, texts in zip(columns, found, strict=True):
        for row, value in enumerate(texts):
            if not isinstance(value, str) or not value.strip():
                raise DataError(f"{shown}, row {row}: no text in {column!r}; leave out the row")
    return list(found[0]) if len(found) == 1 else list(zip(*found, strict=True))
