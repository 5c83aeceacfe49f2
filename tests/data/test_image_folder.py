"""Images in folders: the files that are listed, workers that change no bit and end, and errors."""

import itertools
import os
import pickle
import signal

import numpy as np
import pytest
import torch

from builders import cases, refused
from image_trees import image_tree, picture
from mixwise.data import image_folder
from mixwise.data.images import ImageListing, default_workers
from mixwise.errors import DataError
from process_pool import in_processes
from programs import alive, run_program, wait_for

SIZE = 16

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores


@pytest.fixture(scope="module")
def decoded_here(root):
    return image_folder(root, SIZE, workers=0)


def indices(*values):
    return torch.tensor(values)


# --- what is listed ---


def test_classes_are_the_sorted_folders(decoded_here):
    train, test = decoded_here.train, decoded_here.test
    assert train.class_names == test.class_names == ("ant", "bee", "cat")
    assert (len(train), len(test), train.classes) == (24, 12, 3)
    assert train.y.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert train.kind == "images of 16 × 16 pixels with 3 classes"


def test_subfolders_links_and_any_spelling_are_listed_and_other_files_are_not(tmp_path):
    image_tree(tmp_path, classes=("b", "a"), train=1, val=1)
    inner = tmp_path / "train" / "a" / "2024" / "may"
    inner.mkdir(parents=True)
    picture(0, 5).save(inner / "photo.PNG")
    picture(0, 6).save(tmp_path / "train" / "a" / "\u00e4 \u65e5.JPEG")
    os.symlink(tmp_path / "train" / "a", inner / "around")  # a circle is not followed
    os.symlink(tmp_path / "train" / "b", tmp_path / "train" / "a" / "linked")
    (tmp_path / "train" / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "train" / "a" / ".hidden.jpg").write_text("")
    listing = ImageListing(tmp_path / "train")
    names = [os.path.relpath(listing.source(i), tmp_path / "train") for i in range(len(listing))]
    assert names == ["a/2024/may/photo.PNG", "a/a_0.jpg", "a/linked/b_0.jpg", "a/\u00e4 \u65e5.JPEG", "b/b_0.jpg"]
    (tmp_path / "val").rename(tmp_path / "test")
    splits = image_folder(tmp_path, SIZE, workers=0)
    assert splits.train.x.take(torch.arange(len(names))).shape == (len(names), 3, SIZE, SIZE)
    (tmp_path / "test").rename(tmp_path / "held")
    assert len(image_folder(tmp_path, SIZE, test="held", workers=0).test) == len(splits.test) == 2


def test_the_listing_is_small(tmp_path):
    folder = tmp_path / "n01440764"
    folder.mkdir()
    for number in range(2000):
        (folder / f"n01440764_{number:05d}.JPEG").touch()
    listing = ImageListing(tmp_path)
    assert len(pickle.dumps(listing)) / len(listing) < 50  # bytes; a name has 20
    assert listing.source(1999).endswith("n01440764/n01440764_01999.JPEG")


# --- workers change no bit ---

BATCHES = [((0, 5, 5, 23), 7), ((1, 2, 3), None), (tuple(range(24)), 8), ((0, 5, 5, 23), 9), ((), None)]
REQUESTS = [(torch.tensor(at, dtype=torch.int64), draws) for at, draws in BATCHES]


@pytest.fixture(scope="module")
def expected(decoded_here):
    return [decoded_here.train.x.take(*request) for request in REQUESTS]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_stream_yields_what_is_taken_and_leaves_no_process(root, expected, workers, workers_alive):
    splits = image_folder(root, SIZE, workers=workers)
    assert not workers_alive()
    state, stream = torch.get_rng_state(), splits.train.x.stream(REQUESTS)
    for known in expected:
        assert torch.equal(next(stream), known)
        assert len(workers_alive()) == workers
    assert next(stream, None) is None
    assert not workers_alive()
    assert torch.equal(torch.get_rng_state(), state)  # a DataLoader would draw its workers' seed


def test_the_default_number_of_workers_is_shared_by_the_processes_of_torchrun(monkeypatch):
    cores = default_workers()
    for processes, workers in (("2", max(1, cores // 2)), ("1000", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
        assert default_workers() == workers


def test_draws_belong_to_the_seed_and_the_place_in_the_batch(root, decoded_here, expected):
    first, _, _, other, _ = expected
    assert not torch.equal(first[1], first[2])  # one image twice, two crops
    assert not torch.equal(first, other)
    samples = decoded_here.train.x
    assert torch.equal(samples.take(indices(0, 7, 7, 7), 7)[0], first[0])
    evaluated = samples.take(indices(5, 5))
    assert torch.equal(evaluated[0], evaluated[1])
    plain = image_folder(root, SIZE, augment=False, workers=0).train.x
    assert torch.equal(plain.take(indices(5, 5), 5), evaluated)
    assert torch.equal(samples.subset(indices(9, 5)).take(indices(1)), evaluated[:1])


def test_normalization_of_bytes(root, decoded_here):
    raw = image_folder(root, SIZE, mean=None, std=None, workers=0).test.x.take(indices(0, 11))
    assert raw.dtype == torch.uint8
    mean, std = (np.array(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    wanted = (raw.numpy().astype(np.float64) / 255 - mean) / std
    found = decoded_here.test.x.take(indices(0, 11))
    assert found.dtype == torch.float32
    assert np.abs(found.numpy() - wanted).max() < 1e-5


@pytest.mark.parametrize("end", ["close", "delete", "fail"])
def test_a_stream_without_end_stops_with_its_consumer(root, workers_alive, end):
    stream = image_folder(root, SIZE, workers=2).train.x.stream((indices(0, 1), k) for k in itertools.count())
    next(stream)
    assert len(workers_alive()) == 2
    if end == "close":
        stream.close()
    elif end == "fail":
        with pytest.raises(ZeroDivisionError):
            stream.throw(ZeroDivisionError())
    del stream
    assert not workers_alive()


# --- what goes wrong ---


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_cannot_be_decoded_is_named(tmp_path, workers):
    image_tree(tmp_path, train=3, val=1)
    folder = tmp_path / "train" / "bee"
    whole = (folder / "bee_0.jpg").read_bytes()
    (folder / "bee_0.jpg").write_text("no image at all")
    (folder / "bee_1.jpg").write_bytes(whole[:-60])
    (folder / "bee_2.jpg").write_bytes(b"")
    samples = image_folder(tmp_path, SIZE, workers=workers).train.x
    (tmp_path / "train" / "cat" / "cat_0.jpg").unlink()
    for at, what, why in [
        (3, "bee_0", "not an image in a known format"),
        (4, "bee_1", "image file is truncated"),
        (5, "bee_2", "not an image in a known format"),
        (6, "cat_0", "No such file or directory"),
    ]:
        batches = samples.stream([(indices(0, 1), 1), (indices(0, at, 3), 1)])
        refused(DataError, rf"{tmp_path}.*{what}\.jpg cannot be decoded: {why}", list, batches)
    assert samples.take(indices(0, 1)).shape == (2, 3, SIZE, SIZE)  # the others are still readable


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's own, if it cleans up late
def test_a_worker_that_dies_is_an_error(root, workers_alive):
    def requests():
        for k in range(1000):
            if k == 20:
                for worker in workers_alive():
                    worker.kill()
            yield indices(0), k

    stream = image_folder(root, SIZE, workers=1).train.x.stream(requests())
    refused(DataError, r"a process that decodes images failed \(.*\); set workers=0", list, stream)
    assert not workers_alive()


def check(message, folder, **options):
    refused(DataError, message, image_folder, folder, workers=0, **options)


def test_missing_and_misplaced_files_are_named(tmp_path):
    check(r"there is no folder .*/none; expected train/CLASS/\*\.jpg and val/CLASS/\*\.jpg", tmp_path / "none")
    check(r"there is no folder .*/train; expected train", tmp_path)
    (tmp_path / "train").mkdir()
    check(r"there is no folder .*/val; expected train", tmp_path)
    (tmp_path / "val").mkdir()
    check(r"train: no class folders; expected train", tmp_path)
    for part in ("train", "val"):
        (tmp_path / part / "ant").mkdir()
    check(r"train/ant: no images \(\.jpg, .*; add some, or remove the folder", tmp_path)
    picture(0, 0).save(tmp_path / "train" / "ant" / "a.jpg")
    check(r"val/ant: no images", tmp_path)
    picture(0, 0).save(tmp_path / "val" / "ant" / "a.jpg")
    assert len(image_folder(tmp_path, workers=0).train) == 1
    (tmp_path / "val" / "wasp").mkdir()
    check(r"unknown label 'wasp': there is a folder .*/val/wasp, but no .*/train/wasp", tmp_path)
    check(r"there is no folder .*/held", tmp_path, test="held")
    picture(0, 0).save(tmp_path / "val" / "b.jpg")
    check(r"val/b\.jpg is not in a class folder; ", tmp_path)
    (tmp_path / "flat").mkdir()
    picture(0, 0).save(tmp_path / "flat" / "b.jpg")
    check(r"flat/b\.jpg is .*; the validation images of ImageNet come without", tmp_path, test="flat")


@cases(
    "options, message",
    ({"size": 0}, "size = 0; it must be a number of pixels per side"),
    ({"mean": None}, "or None for both"),
    ({"std": (1, 1)}, "three numbers each"),
    ({"std": (1, 1, 0)}, "std above 0"),
    ({"workers": -1}, "workers = -1; it must be a number of processes"),
)
def test_invalid_options_are_rejected(root, options, message):
    refused(DataError, message, image_folder, root, **options)


# --- no process is left behind ---

PROGRAM = """
import itertools, os, psutil, signal, sys, torch
from mixwise.data import image_folder
torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = 0.1  # how often an idle worker looks for its parent
samples = image_folder(sys.argv[1], 64, workers=2).train.x
stream = samples.stream((torch.arange(24), k) for k in itertools.count())
next(stream)
print(*(child.pid for child in psutil.Process().children()), flush=True)
os.kill(os.getpid(), int(sys.argv[2]))
"""


@in_processes
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_program_also_if_it_is_killed_or_interrupted(root, end):
    program = run_program("-c", PROGRAM, root, str(int(end)))
    assert program.returncode == -end, program.stderr
    workers = [int(pid) for pid in program.stdout.split()]
    assert len(workers) == 2
    wait_for(lambda: not any(map(alive, workers)), [], root)
