"""A user's mistake is one line that says what, and what to do; and nothing good is lost."""

import pytest
import torch
from safetensors.torch import load_file

from mixwise.errors import TrainingError
from mixwise.tasks.devices import checked_device


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    def no_connection(*args, **kwargs):
        raise OSError("offline")

    monkeypatch.setattr("urllib.request.urlopen", no_connection)


RUN = ["run", "digits", "variants=dsgd", "--seeds", "0"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["graph=ring:5000"], ["nodes = 5000 for 1438 samples", "use 1 to 1438 nodes"]),
        (["graph=ring:1400"], ["labels_per_node = 2 on 1400 nodes", "1438 samples"]),
        (["graph=erdos-renyi:8,probability=0.05,seed=0"], ["the graph has", "components, nodes", "use a connected"]),
        (["device=gpu7"], ["device = 'gpu7'", "cpu"]),
        (["task.buffers=mixed"], ["task.buffers = 'mixed'", "'local' or 'averaged'"]),
        (["task.gradients=fast"], ["task.gradients = 'fast'", "'measure'"]),
        (["optimizer.lr=1e9", "steps=20"], ["step 4", "node 1", "lower the learning rate"]),
    ],
)
def test_one_line_that_names_the_value_the_rule_and_the_remedy(mixwise, changes, says):
    done = mixwise(*RUN, *changes)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert done.returncode == 2
    assert len(errors) == 1
    assert "Traceback" not in done.stderr
    for words in says:
        assert words in errors[0]


def test_data_that_are_missing_offline_are_named_with_their_place(mixwise, tmp_path):
    done = mixwise("run", "cifar10-small", "topology=ring", "variants=d2", f"data_dir={tmp_path / 'data'}")
    assert done.returncode == 2
    assert "put cifar-10-binary.tar.gz" in done.stderr
    assert f"into {tmp_path / 'data' / 'cifar10'}" in done.stderr


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b" + bytes(1000)])
def test_an_archive_that_is_not_the_original_is_named_with_its_sum(mixwise, tmp_path, content):
    (tmp_path / "data" / "cifar10").mkdir(parents=True)
    archive = tmp_path / "data" / "cifar10" / "cifar-10-binary.tar.gz"
    archive.write_bytes(content)
    done = mixwise("run", "cifar10-small", "topology=ring", "variants=d2", f"data_dir={tmp_path / 'data'}")
    assert done.returncode == 2
    assert str(archive) in done.stderr
    assert f"{len(content)} bytes" in done.stderr
    assert "delete it" in done.stderr


def test_a_run_that_diverges_keeps_its_last_good_checkpoint(mixwise, tmp_path):
    diverging = [*RUN, "optimizer.lr=1e9", "checkpoint_every=2", "record_every=1", "steps=20", "--out", "run"]
    done = mixwise(*diverging)
    assert done.returncode == 2
    assert "the records so far: run" in done.stderr
    (file,) = (tmp_path / "run" / "dsgd" / "seed-0" / "checkpoint").iterdir()
    kept = file.read_bytes()
    assert all(bool(torch.isfinite(value).all()) for value in load_file(file).values() if value.is_floating_point())
    assert mixwise(*diverging, "--resume").returncode == 2
    assert file.read_bytes() == kept
    assert mixwise("export", "run", "--variant", "dsgd", "--out", "m.safetensors").returncode == 0


def test_a_folder_without_checkpoints_cannot_be_exported(mixwise):
    done = mixwise("export", "nowhere", "--variant", "dsgd")
    assert done.returncode == 2
    assert "nowhere holds no checkpoint" in done.stderr


def test_rows_in_other_precisions_and_places_are_refused():
    with pytest.raises(TrainingError, match=r"torch.bfloat16.*use torch.float32 or torch.float64"):
        checked_device("cpu", torch.bfloat16)
    with pytest.raises(TrainingError, match=r"'meta' cannot hold torch.float32 .*; choose cpu"):
        checked_device("meta", torch.float32)
    with pytest.raises(TrainingError, match=r"'cuda:99'"):
        checked_device("cuda:99", torch.float32)
