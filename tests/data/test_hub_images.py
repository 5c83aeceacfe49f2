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


def save(folder, **splits):
    """Write a dataset of splits, each a list of images and a list of labels."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"photo": datasets.Image(), "animal": datasets.ClassLabel(names=CLASSES)})
    made = {
        split: datasets.Dataset.from_dict({"photo": images, "animal": labels}, features)
        for split, (images, labels) in splits.items()
    }
    datasets.DatasetDict(made).save_to_disk(str(folder))
    return folder


@pytest.fixture(scope="module")
def saved(root, tmp_path_factory):
    """The images in the folders below `root` as a dataset."""

    def split(part):
        files = sorted((root / part).glob("*/*.jpg"))
        images = [{"bytes": file.read_bytes(), "path": None} for file in files]
        return images, [CLASSES.index(file.parent.name) for file in files]

    return save(tmp_path_factory.mktemp("hub") / "animals", train=split("train"), test=split("val"))


def test_images_of_a_data_set_are_those_of_a_folder(saved, root):
    hub, folder = hugging_face(str(saved), size=16, workers=1), image_folder(root, 16, workers=0)
    assert torch.equal(hub.train.y, folder.train.y)
    assert hub.train.class_names == folder.train.class_names
    order = torch.arange(23, -1, -1)
    (streamed,) = hub.train.x.stream([(order, 5)])
    assert torch.equal(streamed, folder.train.x.take(order, 5))
    assert torch.equal(hub.test.x.take(order[-12:]), folder.test.x.take(order[-12:]))


def test_an_image_that_cannot_be_decoded_is_named_by_its_row(tmp_path):
    images = [{"bytes": content, "path": None} for content in (encoded(picture(0, 0)), b"nothing")]
    broken = ([*images, None], [0, 1, 0])
    samples = hugging_face(str(save(tmp_path / "broken", train=broken, test=broken)), size=16, workers=0).train.x
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
