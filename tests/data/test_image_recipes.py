"""`mixwise run imagenet` and `imagenet-small` on generated images, with the code and the network of the real thing."""

import pytest
import torch

from builders import refused
from mixwise.errors import DataError
from mixwise.experiments import load_recipe, plan_experiment, run_experiment
from mixwise.experiments.build import prepare
from run_folders import run_until

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores

TINY = (
    "graph=ring:4", "seeds=0", "task.batch=3", "task.partition.kind=iid", "task.data.options.size=16",
    "task.model.options.width=4", "task.model.options.small_images=true", "record_every=1",
)  # fmt: skip


def planned(root, *overrides):
    return plan_experiment(load_recipe("imagenet-small"), (f"data_dir={root}", *TINY, *overrides))


def test_workers_and_an_interruption_change_no_bit_and_no_worker_is_left(root, tmp_path, workers_alive, no_pictures):
    workers = []
    experiment = planned(root, "steps=6", "checkpoint_every=2", "task.data.options.workers=2")
    run_until(3, experiment, tmp_path / "run", "ha-dsgd-momentum")
    run_experiment(experiment, tmp_path / "run", lambda progress: workers.append(len(workers_alive())), resume=True)
    assert max(workers) == 2  # of one run after the other
    assert not workers_alive()
    run_experiment(planned(root, "steps=6", "task.data.options.workers=0"), tmp_path / "whole")
    for path in (tmp_path / "whole").glob("*/seed-*/metrics.jsonl"):
        assert (tmp_path / "run" / path.relative_to(tmp_path / "whole")).read_bytes() == path.read_bytes()


def test_augment_normalize_validation_and_test_share(root):
    def prepared(*changes):
        return prepare(planned(root, "steps=1", *changes).runs["dsgd-momentum-metropolis"], 0).start().task

    task = prepared("task.augment=false", "task.data.normalize=false", "task.data.test_share=0.5")
    assert (task.data.x.form.augment, task.data.x.form.mean, len(task.test)) == (False, None, 6)
    assert task.data.x.take(torch.arange(2)).dtype == torch.uint8
    task = prepared("task.data.validation=0.25", "task.evaluate_on=validation")
    assert (task.data.x.form.augment, len(task.data), len(task.test)) == (True, 18, 6)
    refused(DataError, "is read on demand", prepared, "task.data.average_down=2")


# --- errors ---


@pytest.mark.parametrize("recipe", ["imagenet", "imagenet-small"])
def test_missing_data_end_a_run_in_one_line(mixwise, recipe, tmp_path):
    done = mixwise("run", recipe)
    assert done.returncode == 2
    assert done.stderr == (
        "error: data_dir is missing: name the folder of your images with data_dir=…; "
        "below it are train/CLASS/*.jpg and val/CLASS/*.jpg\n"
    )
    assert mixwise("run", recipe, f"data_dir={tmp_path / 'none'}").stderr.startswith("error: there is no folder ")
    assert not (tmp_path / "runs").exists()
