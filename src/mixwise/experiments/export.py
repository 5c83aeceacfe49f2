"""Export a trained model from a run, for any PyTorch program or as a folder for Hugging Face's `from_pretrained`.

The run's checkpoint holds everything, frozen parameters and buffers included: a `state_dict` needs neither the data nor
the code of the model, and nothing is run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from mixwise.data.files import model_folder
from mixwise.data.tokens import has_tokenizer, load_tokenizer
from mixwise.errors import ConfigError, unknown
from mixwise.experiments.classification import PRETRAINED, ModelSection, build_model
from mixwise.experiments.config import RunConfig
from mixwise.experiments.experiment_folder import CHECKPOINT
from mixwise.experiments.recipe import load_recipe, plan_experiment
from mixwise.models import ImageClassifier, TextClassifier
from mixwise.parts import Bound
from mixwise.report.folder import read_scene, seed_folders
from mixwise.state import decode
from mixwise.storage import replacing
from mixwise.tasks.buffers import complete, mean_row
from mixwise.training.checkpoint import must_fit, read_checkpoint
from mixwise.training.record_files import SCENE


def export_model(run: Path, variant: str, model: str, out: Path, seed: int | None = None) -> dict[str, torch.Tensor]:
    """Write the averaged model of a run, or that of one node.

    Args:
        run: a run folder.
        variant: which of its variants; `topology/variant` if it spans topologies.
        model: "average", or "node:3".
        out: the file to write; a name without the suffix .safetensors is that of a folder, for models of Hugging Face.
        seed: which seed; not needed if there is only one.
    """
    folder = _checkpoint(run, variant, seed)
    _, header = read_checkpoint(folder, wanted=lambda name: False)
    if header.values.get("shared/layout") in (None, {"json": []}, {"json": None}):
        raise ConfigError(f"{folder} holds no model: the task of this run is not a module")
    parts, _ = read_checkpoint(folder, wanted=lambda name: name.startswith("task/") or name == header.models)
    with must_fit(folder):
        X, layout = parts[header.models], header.values["shared/layout"]["json"]
    node = _node(model, len(X))
    with must_fit(folder):
        row = mean_row(X) if node is None else X[node]
        trained = {
            str(name): row[start : start + torch.Size(shape).numel()].reshape(shape) for name, shape, start in layout
        }
        state = complete(trained, decode(parts, header.values, range(len(X)), "task/"), node)
    if out.suffix != ".safetensors" and (out.suffix == "" or out.is_dir()):
        _export_pretrained(run, variant, state, out)
        return state
    try:
        with replacing(out) as temporary:
            save_file(state, temporary)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{out} cannot be written: {error}") from None
    return state


def _checkpoint(run: Path, variant: str, seed: int | None) -> Path:
    """The checkpoint of a variant and a seed."""
    found = {at: place / CHECKPOINT for at, place in seed_folders(run).items() if (place / CHECKPOINT).exists()}
    if not found:
        raise ConfigError(f"{run} holds no checkpoint of a run; name a folder that mixwise run has made")
    seeds = sorted(number for name, number in found if name == variant)
    if not seeds:
        raise ConfigError(f"{run}: " + unknown("variant", variant, dict.fromkeys(name for name, _ in found)))
    listed = ", ".join(map(str, seeds))
    if seed is None and len(seeds) > 1:
        raise ConfigError(f"{run / variant} has the seeds {listed}; choose one with --seed")
    if seed is not None and seed not in seeds:
        raise ConfigError(f"{run / variant} has no seed {seed}; its seeds are {listed}")
    return found[variant, seeds[0] if seed is None else seed]


def _node(model: str, nodes: int) -> int | None:
    if model == "average":
        return None
    node = re.fullmatch(r"node:(\d+)", model)
    if node is None or int(node[1]) >= nodes:
        raise ConfigError(f"--model {model}: choose average, or node:0 to node:{nodes - 1}")
    return int(node[1])


def _export_pretrained(run: Path, variant: str, state: dict[str, torch.Tensor], out: Path) -> None:
    """Write a folder: configuration with the names of the classes, weights, and the tokenizer of a text model."""
    config = cast(RunConfig | None, plan_experiment(load_recipe(str(run / "config.yaml"))).runs.get(variant))
    scene = next(filter(None, map(read_scene, sorted((run / variant).glob(f"seed-*/{SCENE}")))), None)
    if config is None or scene is None:
        missing = "config.yaml does not describe" if config is None else f"no readable {SCENE} names the classes of"
        raise ConfigError(f"{run}: {missing} {variant}; write a .safetensors file with --out")
    task = config.part("task")
    model = task.options.get("model") if isinstance(task, Bound) else None
    if not isinstance(model, ModelSection) or model.kind not in PRETRAINED:
        raise ConfigError(
            f"--out {out} is not a .safetensors file, and only {' and '.join(PRETRAINED)} models are written as folders"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out} is not empty; choose a new folder")
    names = scene["classes"]
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
