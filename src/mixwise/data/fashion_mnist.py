"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017): ten kinds of clothing, in the form of MNIST."""

from __future__ import annotations

from dataclasses import replace

from mixwise.data.dataset import Splits
from mixwise.data.files import Folder, Progress, RemoteFile, data_folder
from mixwise.data.idx import idx_splits, published
from mixwise.parts import part

_NAMES = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
FILES = published(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)


@part("fashion-mnist", "data", title="Fashion-MNIST", cite="Xiao et al. 2017")
def fashion_mnist(
    data_dir: Folder | None = None, *, progress: Progress | None = None, files: tuple[RemoteFile, ...] = FILES
) -> Splits:
    """60,000 training and 10,000 test images, uint8 (N, 1, 28, 28), from four IDX files in `data_dir/fashion_mnist`.

    Args:
        data_dir: by default `$MIXWISE_DATA`, else `~/.cache/mixwise`; missing files are downloaded there.
        progress: told about downloads: file name, bytes so far, bytes in all.
        files: what to download if missing.
    """
    splits = idx_splits("fashion_mnist", data_folder(data_dir, "fashion_mnist"), files, progress)
    return splits.map(lambda part: replace(part, class_names=_NAMES))
