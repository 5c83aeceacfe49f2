"""Images of a Hugging Face dataset, and a Hugging Face model for images in a recipe."""

import json

import pytest
import torch

from builders import refused
from image_trees import encoded, picture
from mixwise.data import hugging_face, image_folder
from mixwise.errors import DataError
from run_folders import read_records
from tiny_text import save_vit

pytestmark = pytest.mark.xdist_group("transformers")  # importing it takes seconds: once

CLASSES = ["ant", "bee", "cat"]


def photo(label, number):
    return {"bytes": encoded(picture(label, number), "JPEG", quality=90), "path": None}


@pytest.fixture(scope="module")
def datasets():
    return pytest.importorskip("datasets")


def rows(datasets, count, shift):
    labels = [number % 3 for number in range(count)]
    return datasets.Dataset.from_dict(
        {"photo": [photo(label, n + shift) for n, label in enumerate(labels)], "animal": labels},
        features=datasets.Features({"photo": datasets.Image(), "animal": datasets.ClassLabel(names=CLASSES)}),
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory, datasets):
    folder = tmp_path_factory.mktemp("hub") / "animals"
    datasets.DatasetDict({"train": rows(datasets, 24, 0), "test": rows(datasets, 9, 100)}).save_to_disk(str(folder))
    return folder


def test_images_of_a_data_set_are_those_of_a_folder(saved, tmp_path):
    for part, count, shift in (("train", 24, 0), ("val", 9, 100)):
        for number in range(count):
            place = tmp_path / part / CLASSES[number % 3]
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{number:03d}.jpg").write_bytes(photo(number % 3, number + shift)["bytes"])
    hub, folder = hugging_face(str(saved), size=16, workers=1), image_folder(tmp_path, 16, workers=0)
    order = torch.argsort(hub.train.y, stable=True)
    assert torch.equal(hub.train.y[order], folder.train.y)
    assert hub.train.class_names == folder.train.class_names
    (streamed,) = hub.train.x.stream([(order, 5)])
    assert torch.equal(streamed, folder.train.x.take(torch.arange(24), 5))
    assert torch.equal(hub.test.x.take(torch.tensor([0, 3, 6])), folder.test.x.take(torch.tensor([0, 1, 2])))


def test_an_image_that_cannot_be_decoded_is_named_by_its_row(tmp_path, datasets):
    broken = datasets.Dataset.from_dict(
        {"image": [photo(0, 0), {"bytes": b"nothing", "path": None}, None], "label": [0, 1, 0]},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}),
    )
    datasets.DatasetDict({"train": broken, "test": broken}).save_to_disk(str(tmp_path / "broken"))
    samples = hugging_face(str(tmp_path / "broken"), size=16, workers=0).train.x
    assert samples.take(torch.tensor([0])).shape == (1, 3, 16, 16)
    refused(DataError, "broken, row 1 cannot be decoded: not an image in a", samples.take, torch.tensor([0, 1]))
    refused(DataError, "broken, row 2: there is no image; leave out the row", samples.take, torch.tensor([2]))


def test_a_recipe_with_a_vision_transformer_on_images_of_a_dataset(saved, tmp_path, mixwise, no_pictures):
    vit = save_vit(tmp_path / "vit", 32, 7)  # with a head for other classes
    done = mixwise(
        "run", "imagenet-small", "graph=ring:3", "seeds=0", "steps=2", "task.batch=4", "task.partition.kind=iid",
        "task.data.kind=hugging-face", "task.data.options.size=32", f"data_dir={saved}", "variants=auto",
        f"task.model={{kind: image-classifier, options: {{name: {vit}}}}}", "optimizer={kind: adamw, lr: 0.001}",
        "task.data.options.mean=[0.5, 0.5, 0.5]", "task.data.options.std=[0.5, 0.5, 0.5]", "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 0 <= read_records(tmp_path / "run", "auto")[-1]["accuracy"] <= 1
    assert json.loads((tmp_path / "run/auto/seed-0/scene.json").read_text())["classes"] == CLASSES
