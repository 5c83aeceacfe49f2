"""A trained classifier of Hugging Face out of a run, as a folder that `from_pretrained` loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from mixwise.data.files import model_folder
from mixwise.data.tokens import has_tokenizer, load_tokenizer
from mixwise.errors import ConfigError
from mixwise.experiments.classification import PRETRAINED, ModelSection, build_model
from mixwise.experiments.experiment_folder import SCENE
from mixwise.experiments.recipe import load_recipe, plan_experiment
from mixwise.models import ImageClassifier, TextClassifier
from mixwise.parts import Bound


def export_pretrained(run: Path, variant: str, state: dict[str, torch.Tensor], out: Path) -> None:
    """Write the folder: configuration with the names of the classes, weights, and the tokenizer of a text model.

    Args:
        run: the run folder that the model is from.
        variant: which of its variants.
        state: the model, as `export_model` has found it.
        out: a folder that is not there yet, or is empty.
    """
    config = plan_experiment(load_recipe(str(run / "config.yaml"))).runs[variant]
    task = config.part("task")
    model = task.options.get("model") if isinstance(task, Bound) else None
    if not isinstance(model, ModelSection) or model.kind not in PRETRAINED:
        raise ConfigError(
            f"--out {out} is no .safetensors file, and only {' and '.join(PRETRAINED)} models are written as folders"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out} is not empty; choose a folder that is not there yet")
    scene = next(iter(sorted((run / variant).glob(f"seed-*/{SCENE}"))))
    names = json.loads(scene.read_text("utf-8"))["classes"]
    options = {**model.options, "pretrained": False}  # the weights are those of the run
    module = build_model(config, model.model_copy(update={"options": options}), len(names), seed=0)
    assert isinstance(module, TextClassifier | ImageClassifier)
    module.load_state_dict(state)
    settings: Any = module.model.config
    settings.id2label = dict(enumerate(names))
    settings.label2id = {name: i for i, name in enumerate(names)}
    module.save(out)
    folder = model_folder(str(options["name"]), options.get("model_dir", config.model_dir), config.data_dir)
    if isinstance(module, TextClassifier) and has_tokenizer(folder):
        load_tokenizer(folder).backend.save_pretrained(out)
