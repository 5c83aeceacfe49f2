"""MNIST (LeCun, Cortes and Burges 1998): handwritten digits."""

from __future__ import annotations

from mixwise.data.dataset import Splits
from mixwise.data.files import Folder, Progress, RemoteFile, data_folder
from mixwise.data.idx import idx_splits, published
from mixwise.parts import part

FILES = published(  # the authors' own page no longer hands the files out; this copy is kept by the PyTorch project
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)


@part("mnist", "data", title="MNIST", cite="LeCun, Cortes and Burges 1998")
def mnist(
    data_dir: Folder | None = None, *, progress: Progress | None = None, files: tuple[RemoteFile, ...] = FILES
) -> Splits:
    """60,000 training and 10,000 test images, uint8 (N, 1, 28, 28), from four IDX files in `data_dir/mnist`.

    Args:
        data_dir: by default `$MIXWISE_DATA`, else `~/.cache/mixwise`; missing files are downloaded there.
        progress: told about downloads: file name, bytes so far, bytes in all.
        files: what to download if missing.
    """
    return idx_splits("mnist", data_folder(data_dir, "mnist"), files, progress)
