"""TensorBoard gets every number of every record, the graph, and the weights; by default, nothing."""

import sys

import numpy as np
import pytest

from mixwise.errors import ConfigError
from mixwise.experiments import load_recipe, plan_experiment, run_experiment
from run_folders import read_records, run_until

pytestmark = pytest.mark.usefixtures("no_pictures")


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    found.Reload()
    return found


def experiment(*changes):
    return plan_experiment(load_recipe("quadratics"), ["variants=ha-dsgd", "seeds=0", "steps=40", *changes])


def test_every_number_of_every_record_is_there_once_also_after_an_interruption(tmp_path):
    logged = experiment("tensorboard=true", "checkpoint_every=10")
    run_until(25, logged, tmp_path / "run")
    run_experiment(logged, tmp_path / "run", resume=True)
    found, records = events(tmp_path / "run/ha-dsgd/seed-0/tensorboard"), read_records(tmp_path / "run", "ha-dsgd")
    for name in ("loss", "distance_to_optimum", "gradient_mixing_error", "consensus_factor", "bytes_parameters"):
        shown = [(event.step, event.value) for event in found.Scalars(name)]
        assert shown == [(record["step"], np.float32(record[name])) for record in records]
    tags = set(found.Tags()["scalars"])
    assert tags >= {name for name, value in records[-1].items() if isinstance(value, float)}
    assert "seconds/mix" in tags
    assert found.Images("graph")[0].step == 0
    steps = [event.step for event in found.Images("W")]
    assert steps[0] == 0
    assert 15 <= len(steps) <= 30


def test_pictures_at_odd_steps_show_the_optimized_weights_too(tmp_path):
    run_experiment(experiment("tensorboard=true", "record_every=2", "evaluate_every=40"), tmp_path / "run")
    found = events(tmp_path / "run/ha-dsgd/seed-0/tensorboard")
    pictures = [{event.encoded_image_string for event in found.Images(tag)} for tag in ("W", "W unoptimized")]
    assert len(pictures[0]) > 10  # solved again and again
    assert len(pictures[1]) == 1


def test_without_the_package_nothing_starts(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install 'mixwise\[tensorboard\]'"):
        run_experiment(experiment("tensorboard=true"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run_experiment(experiment("steps=3"), tmp_path / "run")
    assert not list(tmp_path.rglob("*tensorboard*"))  # by default
