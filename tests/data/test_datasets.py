"""Datasets: contents compared with their sources, files in every published form, and errors for broken ones."""

import dataclasses
import gzip
import hashlib
import http.client
import io
import logging
import os
import pickle
import tarfile
import urllib.error
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from builders import TouchesAFile, cases, refused
from mixwise import data
from mixwise.data import Dataset, Splits, averaged_down, from_torch, holdout, normalized
from mixwise.data.files import RemoteFile
from mixwise.data.standard import FILES, LAYOUTS
from mixwise.errors import DataError

BINARY, PYTHON = LAYOUTS
IMAGES = 4  # per file of the small CIFAR-10
BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
IDX = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# --- small copies of the published forms ---


def pixels_and_labels() -> tuple[np.ndarray, np.ndarray]:
    """The small CIFAR-10: (24, 3072) and (24,), file after file."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (6 * IMAGES, 3072), dtype=np.uint8), rng.integers(0, 10, 6 * IMAGES, dtype=np.uint8)


def python2_pickle(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """A batch as Python 2 and its NumPy pickled it, opcode by opcode (Python 3 writes other ones)."""

    def string(content: bytes) -> bytes:
        return b"T" + len(content).to_bytes(4, "little") + content

    def integer(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little", signed=True)

    dtype = b"cnumpy\ndtype\n(" + string(b"u1") + b"K\x00K\x01tR(K\x03" + string(b"|") + b"NNN" + 2 * integer(-1)
    shape = b"(" + b"".join(map(integer, pixels.shape)) + b"t"
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + string(b"b") + b"tR"
    array = made + b"(K\x01" + shape + dtype + b"K\x00tb" + b"I00\n" + string(pixels.tobytes()) + b"tb"
    listed = b"](" + b"".join(integer(int(label)) for label in labels) + b"e"
    title = string(b"batch_label") + string(b"a batch")
    return b"\x80\x02}(" + title + string(b"labels") + listed + string(b"data") + array + b"u."


def cifar_files(layout) -> dict[str, bytes]:
    pixels, labels = pixels_and_labels()
    files = {}
    for i, name in enumerate(BATCHES):
        x, y = pixels[i * IMAGES : (i + 1) * IMAGES], labels[i * IMAGES : (i + 1) * IMAGES]
        packed = np.hstack([y[:, None], x]).tobytes() if layout is BINARY else python2_pickle(x, y)
        files[f"{layout.folder}/{name}{layout.suffix}"] = packed
    return files


def tar_gz(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def zipped(array: np.ndarray) -> bytes:
    return gzip.compress(idx_bytes(array), mtime=0)


def idx_files() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    sizes = [(7, 28, 28), (7,), (3, 28, 28), (3,)]
    return {name: rng.integers(0, 10 if len(s) == 1 else 256, s) for name, s in zip(IDX, sizes, strict=True)}


def write(folder, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def small(layout, archive: bytes = b"", address: str = "file:///nowhere"):
    """The layout with small files, an archive of its own and an address, by default one where nothing is."""
    remote = RemoteFile(f"{address}/{layout.archive.name}", sha256(archive))
    return dataclasses.replace(layout, images=IMAGES, archive=remote, md5={})


@pytest.fixture
def cifar10(monkeypatch):
    """Loads CIFAR-10 in one of these layouts."""

    def load(data_dir, *layouts):
        monkeypatch.setattr("mixwise.data.standard.LAYOUTS", layouts)
        return data.cifar10(data_dir)

    return load


def assert_small_cifar(splits: Splits) -> None:
    pixels, labels = pixels_and_labels()
    both_x, both_y = torch.cat([splits.train.x, splits.test.x]), torch.cat([splits.train.y, splits.test.y])
    assert splits.train.x.shape == (5 * IMAGES, 3, 32, 32)
    assert both_x.dtype == torch.uint8
    assert np.array_equal(both_x.reshape(-1, 3072).numpy(), pixels)
    assert np.array_equal(both_y.numpy(), labels)


@pytest.fixture
def site(tmp_path):
    """A folder in place of a server; its address is `site.as_uri()`."""
    (tmp_path / "site").mkdir()
    return tmp_path / "site"


# --- datasets as values ---


def numbers(samples: int = 20, classes: int = 3) -> Dataset:
    return Dataset(torch.arange(samples)[:, None].float(), torch.arange(samples) % classes, classes, "numbers")


def test_a_subset_keeps_the_requested_order():
    part = numbers().subset([4, 0, 4])
    assert (part.x[:, 0].tolist(), part.y.tolist()) == ([4, 0, 4], [1, 0, 1])
    assert (len(part), part.classes, part.name) == (3, 3, "numbers")
    assert numbers().label_counts([[0, 3, 1], [2]]).tolist() == [[2, 1, 0], [0, 0, 1]]


def test_a_holdout_of_a_torch_dataset_says_how_to_convert_it():
    data = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4))
    refused(DataError, r"dataset is .*TensorDataset; convert it: mixwise.data.from_torch", holdout, data, 0.5, 0)


def test_a_holdout_and_the_rest_are_the_whole():
    rest, aside = holdout(numbers(), 0.25, seed=0)
    assert (len(rest), len(aside)) == (15, 5)
    assert sorted(torch.cat([rest.x, aside.x]).flatten().tolist()) == list(range(20))
    assert torch.equal(aside.x, holdout(numbers(), 0.25, seed=0)[1].x)
    assert not torch.equal(aside.x, holdout(numbers(), 0.25, seed=1)[1].x)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(())


def test_a_torch_dataset_is_read_into_memory():
    x, y = torch.randn(5, 2, 3), torch.tensor([0, 2, 1, 0, 2])
    whole = from_torch(torch.utils.data.TensorDataset(x, y))
    assert torch.equal(whole.x, x)
    assert torch.equal(whole.y, y)
    assert (whole.classes, whole.name) == (3, "TensorDataset")
    targets = from_torch([(x[0], 0.5), (x[1], 2.0)])
    assert (targets.y.tolist(), targets.classes) == ([0.5, 2.0], 0)
    assert from_torch([(x[0], 1), [x[1], np.int64(0)]], classes=7, name="mine").classes == 7  # any sequence


ONE = torch.zeros(2)


@cases(
    "make, message",
    (lambda: Dataset(torch.zeros(3, 2), torch.zeros(2).long(), 2), r"x \(3, 2\), y \(2,\)"),
    (lambda: Dataset(torch.zeros(3), torch.zeros(3), 2), "torch.float32; expected"),
    (lambda: Dataset(torch.zeros(0, 2), torch.zeros(0).long(), 2), "no samples"),
    (lambda: Dataset(torch.zeros(2), torch.tensor([-1, 0]), 2, "hapt"), "hapt: labels range from -1 to 0.*unl"),
    (lambda: Dataset(torch.zeros(2), torch.tensor([2, 0]), 2), "labels range from 0 to 2, expected 0 to 1"),
    (lambda: numbers().subset([0, 20]), "indices from 0 to 20; numbers has 0 to 19"),
    (lambda: numbers().subset([True] * 20), "whole numbers"),
    (lambda: holdout(numbers(), 1.5, 0), r"share = 1\.5"),
    (lambda: holdout(numbers(), 0.01, 0), "at least one sample on either side"),
    (lambda: Splits(numbers(classes=3), numbers(classes=4)), "3 classes, test data: .* 4 classes"),
    (lambda: from_torch(Stream()), "Stream has no length"),
    (lambda: from_torch([]), "list has no length, or no samples"),
    (lambda: from_torch([(ONE, 0), (ONE[:1], 0)]), "equal size.* of one shape"),
    (lambda: from_torch([ONE]), "list: .*; expected pairs of a tensor"),
    (lambda: from_torch([("cat.png", 0)]), "got str; expected pairs"),
    (lambda: from_torch([(ONE, "cat")]), "expected pairs of a tensor, .* and a label or target"),
    (lambda: from_torch([(ONE, 0.5)], classes=2), "classes = 2, but the targets are floats"),
    (lambda: Dataset(torch.zeros(3), torch.tensor([0, 1, 0])), "labels without classes; give their number: classes=2"),
    (lambda: data.gaussian_mixture(spread=-1.0), r"spread = -1\.0"),
    (lambda: averaged_down(numbers(), 2), r"factor = 2 for numbers \(20, 1\)"),
    (lambda: averaged_down(Dataset(torch.zeros(1, 1, 4, 4), torch.zeros(1).long(), 1), 3), "must divide H and W"),
    (lambda: normalized(Splits(*(Dataset(torch.zeros(1), torch.zeros(1).long(), 1),) * 2)), r"expected \(N, C, …"),
)
def test_invalid_datasets_are_rejected_with_the_reason(make, message):
    refused(DataError, message, make)


# --- data without files ---


def test_digits_are_those_of_scikit_learn():
    splits, source = data.digits(), load_digits()
    assert (len(splits.train), len(splits.test)) == (1438, 359)
    assert splits.train.x.shape[1:] == (1, 8, 8)
    both = torch.cat([splits.train.x, splits.test.x]).double().reshape(-1, 64) * 16
    rows = sorted(zip(both.tolist(), torch.cat([splits.train.y, splits.test.y]).tolist(), strict=True))
    assert rows == sorted(zip(source.data.tolist(), source.target.tolist(), strict=True))
    assert torch.equal(splits.train.x, data.digits().train.x)


def test_a_gaussian_mixture_has_the_stated_moments():
    """Within a class the points have variance spread² in every direction: within 5 standard errors, √(2/n) relative."""
    splits = data.gaussian_mixture(classes=3, dim=4, samples=6001, spread=0.5, seed=2)
    assert (len(splits.train) + len(splits.test), splits.train.x.dtype) == (6001, torch.float32)
    x, y = torch.cat([splits.train.x, splits.test.x]).double(), torch.cat([splits.train.y, splits.test.y])
    assert y.bincount().tolist() == [2001, 2000, 2000]
    for label in range(3):
        variance = x[y == label].var(0)
        assert (variance / 0.25 - 1).abs().max() < 5 * (2 / 2000) ** 0.5
    centers = [data.gaussian_mixture(classes=3, dim=4, samples=60, spread=0.0, seed=s).train.x for s in (0, 1)]
    assert len(centers[0].unique(dim=0)) == 3
    assert not torch.equal(*centers)


# --- the data folder ---


def test_the_data_folder_is_the_argument_else_the_variable_else_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MIXWISE_DATA", str(tmp_path / "shared"))
    assert data.data_folder(tmp_path, "x") == tmp_path / "x"
    assert data.data_folder("~/mine", "x") == tmp_path / "mine" / "x"
    assert data.data_folder(None, "x") == tmp_path / "shared" / "x"
    monkeypatch.delenv("MIXWISE_DATA")
    assert data.data_folder(None, "x") == tmp_path / ".cache" / "mixwise" / "x"


# --- CIFAR-10 ---


@pytest.mark.parametrize("layout", LAYOUTS, ids=["binary", "python"])
def test_cifar10_from_folder_archive_and_download_is_the_same(layout, cifar10, tmp_path, site, monkeypatch, caplog):
    files = cifar_files(layout)
    archive = tar_gz({f"{layout.folder}/readme.html": b"hello", **files})
    ours, offline = small(layout, archive, site.as_uri()), small(layout, archive)
    write(tmp_path / "folder" / "cifar10", files)
    assert_small_cifar(cifar10(tmp_path / "folder", offline))
    write(tmp_path / "archive" / "cifar10", {ours.archive.name: archive})
    assert_small_cifar(cifar10(tmp_path / "archive", offline))
    write(site, {ours.archive.name: archive})
    monkeypatch.setattr("mixwise.data.files._INTERVAL", 0.0)
    with caplog.at_level(logging.INFO, "mixwise"):
        assert_small_cifar(cifar10(tmp_path / "new", ours))
    assert caplog.messages[-1].startswith(f"downloading {ours.archive.name}: 100 %")
    assert os.listdir(tmp_path / "new" / "cifar10") == [ours.archive.name]
    cifar10(tmp_path / "new", offline)  # downloaded once


def test_a_pickle_that_calls_a_function_is_rejected_without_a_call(cifar10, tmp_path):
    files = cifar_files(PYTHON)
    files[f"{PYTHON.folder}/data_batch_3"] = pickle.dumps({b"data": TouchesAFile(tmp_path / "trap")}, protocol=4)
    write(tmp_path / "cifar10", files)
    refused(DataError, r"data_batch_3: .*the pickle requires \w+.system", cifar10, tmp_path, small(PYTHON))
    assert not (tmp_path / "trap").exists()


def test_a_pickle_that_is_not_the_published_one_is_not_read(cifar10, tmp_path):
    """One flipped bit in the index of a memo asks for gigabytes."""
    write(tmp_path / "cifar10", cifar_files(PYTHON))
    unread = dataclasses.replace(PYTHON, decode=pytest.fail)
    rule = r"cifar-10-batches-py/\w+: md5 \w+, expected \w+; delete it or replace it by the original, or use cifar-10-b"
    refused(DataError, rule, cifar10, tmp_path, unread)


PIXELS, LABELS = (array[:IMAGES] for array in pixels_and_labels())


@cases(
    "layout, content, message",
    (BINARY, bytes(100), "cannot reshape array of size 100"),
    (BINARY, bytes(3073), r"shapes \(\(1, 3072\), \(1,\)\), expected uint8 of \(\(4, 3072\), \(4,\)\)"),
    (BINARY, bytes([10]) + bytes(IMAGES * 3073 - 1), "a label 10, expected 0 to 9"),
    (PYTHON, b"", "EOFError"),
    (PYTHON, python2_pickle(PIXELS, LABELS)[:-200], ""),
    (PYTHON, pickle.dumps({"a": 1}), "KeyError"),
    (PYTHON, python2_pickle(PIXELS[:2], LABELS), r"shapes \(\(2, 3072\), \(4,\)\), expected"),
    (PYTHON, python2_pickle(PIXELS, LABELS.astype(int) + 900), "a label 9[0-9][0-9], expected 0 to 9"),
    (PYTHON, python2_pickle(PIXELS, LABELS).replace(b"u1", b"i1"), "int8 data"),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_invalid_batch_is_named_with_the_reason(layout, content, message, cifar10, tmp_path):
    files = cifar_files(layout)
    files[f"{layout.folder}/data_batch_2{layout.suffix}"] = content
    write(tmp_path / "cifar10", files)
    with pytest.raises(DataError, match=f"data_batch_2{layout.suffix}: not a batch .*{message}.*; delete it or"):
        cifar10(tmp_path, small(layout))


def test_an_archive_or_a_folder_that_is_incomplete_is_rejected(cifar10, tmp_path):
    archive, other = tar_gz(cifar_files(BINARY)), tar_gz({"readme": b"hello"})
    for content, published, message in [
        (archive[:-50], archive, r"cifar-10-binary\.tar\.gz: .* sha256 .*truncated or not the original: delete it"),
        (archive[:-50], archive[:-50], "not a complete tar.gz archive"),
        (b"hello", b"hello", "not a complete tar.gz archive"),
        (other, other, "contains no cifar-10-batches-bin/data_batch_1.bin"),
    ]:
        write(tmp_path / "cifar10", {BINARY.archive.name: content})
        refused(DataError, message, cifar10, tmp_path, small(BINARY, published))
    write(tmp_path / "cifar10", cifar_files(BINARY))
    (tmp_path / "cifar10" / BINARY.folder / "test_batch.bin").unlink()
    refused(DataError, r"no file .*test_batch\.bin; restore it", cifar10, tmp_path, small(BINARY))


# --- downloads ---


FAILED = {  # what a server, or the connection to it, answers
    "absent": "cannot be downloaded",
    "altered": "downloaded .* bytes with sha256",
    "cut": "downloaded .* bytes with sha256",
    urllib.error.HTTPError("", 503, "Service Unavailable", None, None): r"downloaded \(Service Unavailable\)",
    http.client.IncompleteRead(b"half"): r"downloaded \(IncompleteRead\(4 bytes read\)\)",
}


@pytest.mark.parametrize("wrong", FAILED, ids=str)
def test_a_failed_download_leaves_nothing_and_says_which_file_to_put_where(wrong, cifar10, tmp_path, site, monkeypatch):
    archive = tar_gz(cifar_files(BINARY))
    ours, reason = small(BINARY, archive, site.as_uri()), FAILED[wrong]
    if isinstance(wrong, Exception):
        monkeypatch.setattr("urllib.request.urlopen", Mock(side_effect=wrong))
    elif wrong != "absent":
        write(site, {ours.archive.name: archive[:-1] + (b"?" if wrong == "altered" else b"")})
    with pytest.raises(DataError, match=f"{ours.archive.url}.*{reason}.*put cifar-10-binary.tar.gz") as error:
        cifar10(tmp_path, ours, small(PYTHON))
    assert "cifar-10-batches-py" in str(error.value)
    assert f"into {tmp_path / 'cifar10'}" in str(error.value)
    assert os.listdir(tmp_path / "cifar10") == []


# --- MNIST and Fashion-MNIST ---


def assert_small_mnist(splits: Splits) -> None:
    images, labels, test_images, test_labels = idx_files().values()
    for part, x, y in [(splits.train, images, labels), (splits.test, test_images, test_labels)]:
        assert np.array_equal(part.x.numpy(), x[:, None])
        assert np.array_equal(part.y.numpy(), y)
        assert part.x.dtype == torch.uint8


@pytest.mark.parametrize("load", [data.mnist, data.fashion_mnist])
@pytest.mark.parametrize("dotted", [False, True])
@pytest.mark.parametrize("packed", [idx_bytes, zipped])
def test_idx_files_are_read_under_all_their_names(load, dotted, packed, tmp_path):
    suffix = ".gz" if packed is zipped else ""
    files = {name.replace("-idx", ".idx") if dotted else name: packed(array) for name, array in idx_files().items()}
    write(tmp_path / load.__name__, {name + suffix: content for name, content in files.items()})
    splits = load(tmp_path)
    assert_small_mnist(splits)
    assert splits.train.name == load.__name__


def test_missing_idx_files_are_downloaded(tmp_path, site, monkeypatch):
    packed = {f"{name}.gz": zipped(array) for name, array in idx_files().items()}
    files = tuple(RemoteFile(f"{site.as_uri()}/{name}", sha256(content)) for name, content in packed.items())
    monkeypatch.setitem(FILES, "mnist", files)
    write(tmp_path / "mnist", {IDX[0]: idx_bytes(idx_files()[IDX[0]])})
    refused(DataError, rf"put {IDX[1]} or .*\.gz, and the other three IDX files, into", data.mnist, tmp_path)
    write(site, {name: content for name, content in packed.items() if IDX[0] not in name})
    assert_small_mnist(data.mnist(tmp_path))


@cases(
    "name, content, message",
    ("train-images-idx3-ubyte", idx_bytes(np.zeros(7)), "start with 00 00 08 01; .* 00 00 08 03"),
    ("train-images-idx3-ubyte", idx_bytes(np.zeros((7, 28, 28)))[:-1], r"5503 bytes.*\(7, 28, 28\).*5504"),
    ("train-images-idx3-ubyte", bytes([0, 0, 8, 3]) + b"\xff" * 12, "announces more than 1.1 GB"),
    ("train-labels-idx1-ubyte", idx_bytes(np.zeros(6)), r"x \(7, 1, 28, 28\), y \(6,\)"),
    ("train-labels-idx1-ubyte", idx_bytes(np.full(7, 12)), "labels range from 12 to 12, expected 0 to 9"),
    ("t10k-images-idx3-ubyte.gz", zipped(np.ones((3, 28, 28)))[:-9], "not a complete gzip file"),
    ("t10k-labels-idx1-ubyte.gz", b"hello", "not a complete gzip file"),
)
def test_an_invalid_idx_file_is_named_with_the_reason(name, content, message, tmp_path):
    files = {other: idx_bytes(array) for other, array in idx_files().items() if other != name.removesuffix(".gz")}
    write(tmp_path / "mnist", {**files, name: content})
    refused(DataError, f"{name}: .*{message}", data.mnist, tmp_path)
