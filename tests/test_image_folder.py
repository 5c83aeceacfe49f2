"""Images in folders: what is listed, that nobody can tell who decoded them, and what goes wrong in which words."""

import os
import pickle
import signal
import time

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from image_trees import image_tree, picture
from mixwise.data import holdout, image_folder, image_samples
from mixwise.data.decoding_workers import Decoder, default_workers
from mixwise.data.image_folder import ImageListing
from mixwise.errors import DataError
from processes import in_processes, run_in_fresh_processes

SIZE = 16


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return image_tree(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def decoded_here(root):
    return image_folder(root, SIZE, workers=0)


@pytest.fixture(scope="module")
def decoded_by_two(root):
    splits = image_folder(root, SIZE, workers=2)
    yield splits
    splits.train.x.close()


def indices(*values):
    return torch.tensor(values)


def processes():
    """The processes below this one that decode."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if decodes(child)]


def decodes(process):
    """Whether a process decodes images; one that has ended, whether its parent knows or not, does not."""
    try:
        return any("decoding.py" in word for word in process.cmdline())
    except psutil.NoSuchProcess:  # a zombie, too
        return False


# --- what is listed ---


def test_classes_are_the_sorted_folders(decoded_here):
    train, test = decoded_here.train, decoded_here.test
    assert train.class_names == test.class_names == ("ant", "bee", "cat")
    assert (len(train), len(test), train.classes) == (24, 12, 3)
    assert train.y.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert train.kind == "images of 16 × 16 pixels with 3 classes"


def test_images_are_those_of_the_files(decoded_here, root):
    for at in (0, 9, 23):
        path = sorted(root.glob("train/*/*.jpg"))[at]
        expected = np.asarray(Image.open(path)).mean((0, 1))
        found = decoded_here.train.x.take(indices(at))[0] * torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
        found = 255 * (found + torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))
        assert np.abs(found.mean((1, 2)).numpy() - expected).max() < 12  # the middle against the whole


def test_folders_inside_a_class_other_files_and_any_spelling(tmp_path):
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
    splits = image_folder(tmp_path, SIZE, workers=0)
    assert splits.train.x.take(torch.arange(len(names))).shape == (len(names), 3, SIZE, SIZE)


def test_the_listing_is_small(tmp_path):
    folder = tmp_path / "n01440764"
    folder.mkdir()
    for number in range(2000):
        (folder / f"n01440764_{number:05d}.JPEG").touch()
    listing = ImageListing(tmp_path)
    assert len(pickle.dumps(listing)) / len(listing) < 50  # bytes; a name has 20
    assert listing.source(1999).endswith("n01440764/n01440764_01999.JPEG")


def test_the_test_images_may_lie_in_another_folder(tmp_path):
    image_tree(tmp_path, train=1, val=1)
    (tmp_path / "val").rename(tmp_path / "test")
    assert len(image_folder(tmp_path, SIZE, workers=0).test) == 3
    (tmp_path / "test").rename(tmp_path / "held")
    assert len(image_folder(tmp_path, SIZE, test="held", workers=0).test) == 3


# --- nobody can tell who decoded them, and when ---

BATCHES = [((0, 5, 5, 23), 7), ((1, 2, 3), None), (tuple(range(24)), 8), ((0, 5, 5, 23), 9)]


@pytest.fixture(scope="module")
def expected(decoded_here):
    return [decoded_here.train.x.take(indices(*at), draws) for at, draws in BATCHES]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("announced", [False, True])
def test_the_same_bits_from_any_number_of_processes(root, expected, workers, announced):
    samples = image_folder(root, SIZE, workers=workers).train.x
    try:
        if announced:
            for at, draws in reversed(BATCHES):
                samples.expect(indices(*at), draws)
                samples.expect(indices(*at), draws)
        for (at, draws), known in zip(BATCHES, expected, strict=True):
            assert torch.equal(samples.take(indices(*at), draws), known)
        assert len(processes()) >= workers
    finally:
        samples.close()


def test_draws_belong_to_the_seed_and_the_place_in_the_batch(decoded_here, expected):
    first, _, _, other = expected
    assert not torch.equal(first[1], first[2])  # one image twice, two crops
    assert not torch.equal(first, other)
    samples = decoded_here.train.x
    assert torch.equal(samples.take(indices(0, 7, 7, 7), 7)[0], first[0])
    judged = samples.take(indices(5, 5))
    assert torch.equal(judged[0], judged[1])


def test_without_augmentation_training_sees_what_evaluation_sees(root, decoded_here):
    plain = image_folder(root, SIZE, augment=False, workers=0).train.x
    assert torch.equal(plain.take(indices(3, 4), 5), decoded_here.train.x.take(indices(3, 4)))


def test_bytes_and_what_normalization_makes_of_them(root, decoded_here):
    raw = image_folder(root, SIZE, mean=None, std=None, workers=0).test.x.take(indices(0, 11))
    assert raw.dtype == torch.uint8
    mean, std = (np.array(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    wanted = (raw.numpy().astype(np.float64) / 255 - mean) / std
    found = decoded_here.test.x.take(indices(0, 11))
    assert found.dtype == torch.float32
    assert np.abs(found.numpy() - wanted).max() < 1e-5


def test_parts_of_a_data_set_are_the_same_images(decoded_here):
    rest, aside = holdout(decoded_here.train, 0.25, seed=3)
    assert len(aside) == 6
    for part in (rest, aside):
        for i in (0, 3):
            image = part.x.take(indices(i))
            original = [j for j in range(24) if torch.equal(decoded_here.train.x.take(indices(j)), image)]
            assert len(original) == 1
            assert decoded_here.train.y[original[0]] == part.y[i]
    assert torch.equal(aside.subset([4, 1]).x.take(indices(1)), aside.x.take(indices(1)))


def test_a_copy_decodes_for_itself(decoded_by_two):
    samples = decoded_by_two.train.x
    samples.expect(indices(0, 1), 1)
    copy = pickle.loads(pickle.dumps(decoded_by_two.train)).x
    try:
        assert torch.equal(copy.take(indices(0, 1), 1), samples.take(indices(0, 1), 1))
    finally:
        copy.close()


def test_what_waits_to_be_taken_is_bounded_and_forgotten_if_nobody_comes(root, monkeypatch):
    monkeypatch.setattr(image_samples, "_AHEAD", 3 * 2 * 3 * SIZE**2)  # three batches of two
    samples = image_folder(root, SIZE, workers=1).train.x
    try:
        for start in range(8):
            samples.expect(indices(start, start + 1), 0)
        assert len(samples._ahead) == 3
        for start in range(8):
            samples.take(indices(start, start + 1), 0)
        assert not samples._ahead
        for start in range(3):
            samples.expect(indices(start, start + 1), 1)  # a run that ends here
        for start in range(12):  # and the next one
            samples.take(indices(start, start + 1), 2)
            samples.expect(indices(start + 1, start + 2), 2)
        assert [draws for _, draws in samples._ahead].count(2) >= 1
    finally:
        samples.close()


def test_nothing_is_started_before_a_batch_is_needed_and_nothing_by_zero_workers(root):
    before = len(processes())
    splits, here = image_folder(root, SIZE, workers=2), image_folder(root, SIZE, workers=0)
    here.train.x.expect(indices(0), 1)
    here.train.x.take(indices(0), 1)
    assert len(processes()) == before
    splits.test.x.take(indices(0))
    splits.train.x.take(indices(0))  # both parts share them
    assert len(processes()) == before + 2
    del splits
    deadline = time.monotonic() + 60
    while len(processes()) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(processes()) == before


def test_processes_of_torchrun_share_the_cores(monkeypatch):
    cores = default_workers()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert default_workers() == max(1, cores // 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert default_workers() == 1


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
    try:
        for at, what, why in [
            (3, "bee_0", "not an image in a known format"),
            (4, "bee_1", "image file is truncated"),
            (5, "bee_2", "not an image in a known format"),
            (6, "cat_0", "No such file or directory"),
        ]:
            samples.expect(indices(0, at, 3), 1)
            with pytest.raises(DataError, match=rf"{what}\.jpg cannot be decoded: {why}") as told:
                samples.take(indices(0, at, 3), 1)
            assert "\n" not in str(told.value)
            assert str(tmp_path) in str(told.value)
        assert samples.take(indices(0, 1)).shape == (2, 3, SIZE, SIZE)  # the others are still there
    finally:
        samples.close()


def test_a_process_that_dies_is_told_and_a_new_batch_starts_others(root):
    samples = image_folder(root, SIZE, workers=1).train.x
    before = {child.pid for child in processes()}
    samples.take(indices(0))
    (own,) = [child for child in processes() if child.pid not in before]
    own.kill()
    with pytest.raises(DataError, match=r"was killed by SIGKILL while it read .*ant_1\.jpg .* workers = 0"):
        samples.take(indices(1))
    with pytest.raises(DataError, match="was killed by SIGKILL"):
        samples.take(indices(2))
    samples.close()
    assert samples.take(indices(1)).shape == (1, 3, SIZE, SIZE)
    samples.close()


def test_a_process_that_does_not_answer_is_not_waited_for_forever(root, monkeypatch):
    monkeypatch.setattr("mixwise.data.decoding_workers._PATIENCE", 0.2)
    samples = image_folder(root, SIZE, workers=1).train.x
    before = {child.pid for child in processes()}
    samples.expect(indices(0))  # starts it
    (own,) = [child for child in processes() if child.pid not in before]
    own.send_signal(signal.SIGSTOP)
    with pytest.raises(DataError, match=r"ant_5\.jpg or others before it were not read within 0\.2 s"):
        samples.take(indices(5))
    samples.close()
    assert not own.is_running() or own.status() == psutil.STATUS_ZOMBIE


def test_a_slow_disk_is_waited_for_as_long_as_images_come(root, monkeypatch):
    samples = image_folder(root, 224, workers=1).train.x
    try:
        samples.take(indices(0))
        start = time.monotonic()
        samples.take(torch.arange(24), 1)
        monkeypatch.setattr("mixwise.data.decoding_workers._PATIENCE", 2 * (time.monotonic() - start))  # six pieces
        for draws in range(5):
            samples.expect(torch.arange(24), draws)
        samples.take(torch.arange(24), 99)  # has to wait for all that were announced
    finally:
        samples.close()


def check(message, folder, **options):
    with pytest.raises(DataError, match=message) as told:
        image_folder(folder, workers=0, **options)
    assert "\n" not in str(told.value)


def test_folders_that_are_not_as_expected(tmp_path):
    check(r"there is no folder .*/none; expected are train/CLASS/\*\.jpg and val/CLASS/\*\.jpg", tmp_path / "none")
    check(r"there is no folder .*/train; expected are", tmp_path)
    (tmp_path / "train").mkdir()
    check(r"there is no folder .*/val; expected are", tmp_path)
    (tmp_path / "val").mkdir()
    check(r"train: no class folders; expected are", tmp_path)
    for part in ("train", "val"):
        (tmp_path / part / "ant").mkdir()
    check(r"train/ant: no images; a class has at least one \(\.jpg, .* or remove the folder", tmp_path)
    picture(0, 0).save(tmp_path / "train" / "ant" / "a.jpg")
    check(r"val/ant: no images", tmp_path)
    picture(0, 0).save(tmp_path / "val" / "ant" / "a.jpg")
    assert len(image_folder(tmp_path, workers=0).train) == 1
    (tmp_path / "val" / "wasp").mkdir()
    check(r"unknown label 'wasp': there is a folder .*/val/wasp, but no .*/train/wasp", tmp_path)
    check(r"there is no folder .*/held", tmp_path, test="held")


def test_validation_images_of_imagenet_that_lie_flat(tmp_path):
    image_tree(tmp_path, train=1, val=1)
    for path in (tmp_path / "val").rglob("*.jpg"):
        path.rename(tmp_path / "val" / path.name)
    for folder in list((tmp_path / "val").iterdir()):
        if folder.is_dir():
            folder.rmdir()
    check(r"val/.*\.jpg lies in no class folder; .*; the validation images of ImageNet come without", tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(tmp_path):
    image_tree(tmp_path, train=1, val=1)
    (tmp_path / "train" / "bee").chmod(0)
    try:
        check(r"train/bee: cannot be read \(Permission denied\)", tmp_path)
    finally:
        (tmp_path / "train" / "bee").chmod(0o755)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size = 0; give the pixels per side"),
        ({"size": "big"}, "size = 'big'"),
        ({"mean": None}, "give both or neither"),
        ({"std": (1, 1)}, "three numbers each"),
        ({"std": (1, 1, 0)}, "std above 0"),
    ],
)
def test_options_that_make_no_sense(root, options, message):
    check(message, root, **options)


@pytest.mark.parametrize("workers", [-1, 1.5, "two", True])
def test_workers_are_counted(workers):
    with pytest.raises(DataError, match=r"workers = .*; give a whole number of processes"):
        Decoder(workers)


# --- nobody is left behind ---


def killed_in_the_middle(rank, world, root, note):
    samples = image_folder(root, 64, workers=2).train.x
    for k in range(50):
        samples.expect(torch.arange(24), k)
    samples.take(torch.arange(24), 0)
    note.write_text(" ".join(str(child.pid) for child in processes()))
    os.kill(os.getpid(), signal.SIGKILL)


@in_processes
def test_processes_end_with_the_one_that_started_them_even_if_it_is_killed(root, tmp_path):
    (outcome,) = run_in_fresh_processes(1, killed_in_the_middle, root, tmp_path / "pids")
    assert outcome.exitcode == -signal.SIGKILL
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 60
    while any(map(running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(running, pids))


def running(pid):
    """Whether a process has not ended; one that has stays known until its parent asks how."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
