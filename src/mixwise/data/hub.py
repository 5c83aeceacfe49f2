"""Any data set of Hugging Face `datasets`, from disk or from the hub: texts or images with one label each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from mixwise.data.dataset import Dataset, Splits
from mixwise.data.decoding import Source
from mixwise.data.drawn import drawn
from mixwise.data.files import Folder, data_folder
from mixwise.data.hub_files import folder_named, optional, quiet, repository
from mixwise.data.image_samples import IMAGENET_MEAN, IMAGENET_STD, Colors, ImageForm, ImageSamples
from mixwise.data.samples import Samples
from mixwise.data.tokenizer import Tokenizer
from mixwise.data.tokens import Text, tokenized
from mixwise.errors import DataError
from mixwise.parts import part

_TESTS = ("test", "validation", "valid", "val")
_LABELS = ("label", "labels", "class", "category", "target", "fine_label")
_TEXTS = ("text", "sentence", "content", "document", "review")


@part("hugging-face", "data", title="data set of the Hugging Face hub")
def hugging_face(
    name: str | None = None,
    data_dir: Folder | None = None,
    *,
    config: str | None = None,
    train: str = "train",
    test: str | None = None,
    text: str | Sequence[str] | None = None,
    image: str | None = None,
    label: str | None = None,
    tokenizer: str | Path | Tokenizer | None = None,
    max_length: int = 128,
    size: int = 224,
    augment: bool = True,
    mean: Colors | None = IMAGENET_MEAN,
    std: Colors | None = IMAGENET_STD,
    workers: int | None = None,
    train_samples: int | None = None,
    test_samples: int | None = None,
) -> Splits:
    """The training and the test part of a data set; what is not said is found out, or asked for.

    Args:
        name: a folder that `save_to_disk` has written or that holds parquet, csv or json files; such a folder below
            `data_dir`; or a name on the hub. Without a name, `data_dir` is the folder.
        data_dir: by default `$MIXWISE_DATA`, else `~/.cache/mixwise`.
        config: which configuration of the data set, if it has several.
        train, test: the names of the parts; by default "train", and the first of test, validation, valid and val.
        text: the column of the texts, or the two of pairs of texts.
        image: the column of the images.
        label: the column of the labels: numbers, names, or what `datasets` calls a ClassLabel.
        tokenizer: of texts: the folder or the name of the pretrained model whose tokens they become.
        max_length: longer texts are cut.
        size, augment, mean, std, workers: of images, as for `image_folder`.
        train_samples, test_samples: take so many, drawn once and for all; all by default.
    """
    folder = _folder(name, data_dir)
    parts = _loaded(folder, config)
    shown = name or str(folder)
    train_part = _part(parts, train, "train", shown)
    test_part = _part(parts, test or next((part for part in _TESTS if part in parts), "test"), "test", shown)
    columns = Columns(train_part.features, text, image, label, shown)
    classes = Labels(train_part, columns.label, shown)
    form = ImageForm(size, augment, mean and tuple(mean), std and tuple(std))  # type: ignore[arg-type]

    def made(part: Any, option: str, count: int | None) -> Dataset:
        chosen = drawn(len(part), count, option, shown)
        if missing := [column for column in columns.all if column not in part.features]:
            raise DataError(
                f"{shown}: {option.partition('_')[0]} has no column {missing[0]!r}, which the other part has"
            )
        part = part if count is None else part.select(chosen)
        y = torch.tensor(classes(part[columns.label][:], option.partition("_")[0]), dtype=torch.int64)
        x: Samples
        if columns.image is not None:
            x = ImageSamples(HubImages(part, columns.image, shown), form, workers)
        elif tokenizer is None:
            raise DataError(f"{shown} holds texts; name the tokenizer that makes tokens of them with tokenizer=…")
        else:
            x = tokenized(_texts(part, columns.texts, shown), tokenizer, max_length, shown)
        return Dataset(x, y, len(classes.names), shown, tuple(classes.names))

    return Splits(made(train_part, "train_samples", train_samples), made(test_part, "test_samples", test_samples))


class Columns:
    """Which columns hold what.

    Attributes:
        image: the column of images, or None.
        texts: the columns of texts.
        label: the column of labels.
    """

    def __init__(
        self, features: Any, text: str | Sequence[str] | None, image: str | None, label: str | None, shown: str
    ) -> None:
        kinds = {name: type(feature).__name__ for name, feature in features.items()}
        self._listed = f"{shown} has the columns " + ", ".join(
            f"{name} ({getattr(features[name], 'dtype', kind)})" for name, kind in kinds.items()
        )
        self._there = features
        labeled = [name for name, kind in kinds.items() if kind == "ClassLabel"]
        known = [name for name in _LABELS if name in kinds]
        self.label = self._named("label", label, labeled if len(labeled) == 1 else known[:1])
        images = [name for name, kind in kinds.items() if kind == "Image"]
        self.image = None
        self.texts: list[str] = []
        if image is not None or (images and text is None):
            self.image = self._named("image", image, images if len(images) == 1 else [])
            return
        strings = [name for name, f in features.items() if getattr(f, "dtype", "") in ("string", "large_string")]
        strings = [name for name in strings if name != self.label]
        usual = [name for name in _TEXTS if name in strings]
        given: list[str | None] = [text] if isinstance(text, str) or text is None else list(text)
        if len(given) not in (1, 2):
            raise DataError(f"text = {text!r}; give one column, or two for pairs of texts")
        self.texts = [
            self._named("text", column, usual[:1] or (strings if len(strings) == 1 else [])) for column in given
        ]

    @property
    def all(self) -> list[str]:
        """Of the inputs and of the labels."""
        return [*([self.image] if self.image is not None else self.texts), self.label]

    def _named(self, what: str, given: str | None, found: list[str]) -> str:
        if given is None and len(found) == 1:
            return found[0]
        if given is not None and given in self._there:
            return given
        wrong = (
            f"{what} = {given!r} is none of them" if given is not None else f"which one holds the {what} is not clear"
        )
        raise DataError(f"{self._listed}; {wrong}: name it with {what}=…")


class Labels:
    """The names of the classes, and labels as numbers."""

    def __init__(self, train: Any, column: str, shown: str) -> None:
        self.column, self.shown = column, shown
        feature = train.features[column]
        if type(feature).__name__ == "ClassLabel":
            self.names = list(feature.names)
            self._number: dict[Any, int] = {i: i for i in range(len(self.names))}
            return
        values = sorted({value for value in train[column][:] if value is not None}, key=lambda v: (str(type(v)), v))
        if any(isinstance(value, float) or not isinstance(value, int | str) for value in values):
            raise DataError(f"{shown}: column {column!r} holds {values[0]!r}; labels are whole numbers or names")
        if values and all(isinstance(value, int) for value in values) and values[0] >= 0:
            values = list(range(values[-1] + 1))  # numbers stay what they are
        self.names = [str(value) for value in values]
        self._number = {value: i for i, value in enumerate(values)}

    def __call__(self, values: Iterable[Any], part: str) -> list[int]:
        """Numbers from 0 on."""
        numbers = []
        for row, value in enumerate(values):
            if value not in self._number:
                known = ", ".join(self.names[:10]) + (", …" if len(self.names) > 10 else "")
                raise DataError(
                    f"{self.shown}, {part}, row {row}: unknown label {value!r} in {self.column!r}; "
                    f"the training part has {known}: leave such rows out"
                )
            numbers.append(self._number[value])
        return numbers


class HubImages:
    """The images of a column, still encoded; an `ImageSource`."""

    def __init__(self, part: Any, column: str, shown: str) -> None:
        datasets = optional("datasets", "hub")
        self._rows, self._column, self._shown = part.cast_column(column, datasets.Image(decode=False)), column, shown

    def __len__(self) -> int:
        return len(self._rows)

    def source(self, index: int) -> Source:
        """The bytes of a file, or its path."""
        found = self._rows[index][self._column] or {}
        encoded: Source | None = found.get("bytes") or found.get("path")
        if encoded is None:
            raise DataError(f"{self.name(index)}: there is no image; leave the row out")
        return encoded

    def name(self, index: int) -> str:
        """The data set and the row."""
        return f"{self._shown}, row {index}"


def _folder(name: str | None, data_dir: Folder | None) -> Path:
    if name is None and data_dir is None:
        raise DataError(
            "which data set? give its folder or its name on the hub with name=…, or its folder with data_dir=…"
        )
    if name is None:
        folder = Path(str(data_dir)).expanduser()
        if not folder.is_dir():
            raise DataError(f"there is no folder {folder}; give one that holds a data set, or a name on the hub")
        return folder
    remedy = "give one that holds a data set, or a name on the hub"
    if (found := folder_named(name, name, data_dir, remedy)) is not None:
        return found
    return repository(name, "dataset", f"give its folder as name, or put it into {data_folder(data_dir, name)}")


def _loaded(folder: Path, config: str | None) -> dict[str, Any]:
    """The parts of a data set by their names."""
    datasets = optional("datasets", "hub")
    with quiet():
        try:
            if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
                found = datasets.load_from_disk(str(folder))
            else:
                found = datasets.load_dataset(str(folder), config)
        except Exception as error:  # of arrow, of pandas, of datasets: files that cannot be read, a config to choose
            cause = error.__cause__ if error.__cause__ is not None else error
            reason = " ".join(str(cause).split())[:300]
            raise DataError(
                f"{folder} cannot be read as a data set ({reason}); expected is what save_to_disk has written, "
                f"or parquet, csv or json files"
            ) from None
    return {"train": found} if isinstance(found, datasets.Dataset) else dict(found)


def _part(parts: dict[str, Any], name: str, option: str, shown: str) -> Any:
    if name not in parts:
        raise DataError(f"{shown} has no part {name!r}; it has {', '.join(parts)}: name one with {option}=…")
    return parts[name]


def _texts(part: Any, columns: list[str], shown: str) -> list[Text]:
    rows = [part[column][:] for column in columns]
    for column, texts in zip(columns, rows, strict=True):
        for row, value in enumerate(texts):
            if not isinstance(value, str) or not value.strip():
                raise DataError(f"{shown}, row {row}: no text in {column!r}; leave the row out")
    return list(rows[0]) if len(rows) == 1 else list(zip(*rows, strict=True))
