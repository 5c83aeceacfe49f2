"""A trained model out of a run: a plain, complete safetensors `state_dict`, for any PyTorch program.

Everything in it stands in the run's checkpoint, frozen parameters and buffers included: neither the data nor the code
of the model is needed, and nothing is run.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from mixwise.errors import ConfigError, unknown
from mixwise.experiments.experiment_folder import CHECKPOINT
from mixwise.experiments.export_pretrained import export_pretrained
from mixwise.state import decode
from mixwise.tasks.buffers import complete, mean_row
from mixwise.training.checkpoint import read_checkpoint


def export_model(run: Path, variant: str, model: str, out: Path, seed: int | None = None) -> dict[str, torch.Tensor]:
    """Write the averaged model of a run, or that of one node.

    Args:
        run: a run folder.
        variant: which of its variants; `topology/variant` if it spans topologies.
        model: "average", or "node:3".
        out: the file to write; a name without the suffix .safetensors is that of a folder, for models of Hugging Face.
        seed: which seed; not needed if there is only one.
    """
    variants = sorted(str(path.parent.parent.relative_to(run)) for path in run.glob(f"**/seed-*/{CHECKPOINT}"))
    if not variants:
        raise ConfigError(f"{run} holds no checkpoint of a run; name a folder that mixwise run has made")
    if variant not in variants:
        raise ConfigError(f"{run}: " + unknown("variant", variant, dict.fromkeys(variants)))
    seeds = sorted(int(path.parent.name.removeprefix("seed-")) for path in (run / variant).glob(f"seed-*/{CHECKPOINT}"))
    if seed is None and len(seeds) > 1:
        raise ConfigError(f"{run / variant} has the seeds {', '.join(map(str, seeds))}; choose one with --seed")
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        raise ConfigError(f"{run / variant} has no seed {seed}; there are {', '.join(map(str, seeds))}")
    folder = run / variant / f"seed-{seed}" / CHECKPOINT
    _, values = read_checkpoint(folder, wanted=lambda name: False)
    layout = values["values"]["shared/layout"]["json"]
    if not layout:
        raise ConfigError(f"{folder} holds no model: the task of this run is not a module")
    parts, _ = read_checkpoint(folder, wanted=lambda name: name.startswith("task/") or name == values["models"])
    X = parts[values["models"]]
    node = _node(model, len(X))
    row = mean_row(X) if node is None else X[node]
    trained = {name: row[start : start + _size(shape)].reshape(shape) for name, shape, start in layout}
    state = complete(trained, decode(parts, values["values"], range(len(X)), "task/"), node)
    if out.suffix != ".safetensors" and (out.suffix == "" or out.is_dir()):
        export_pretrained(run, variant, state, out)
        return state
    try:
        save_file(state, out)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{out} cannot be written: {error}") from None
    return state


def _node(model: str, nodes: int) -> int | None:
    if model == "average":
        return None
    node = re.fullmatch(r"node:(\d+)", model)
    if node is None or int(node[1]) >= nodes:
        raise ConfigError(f"--model {model}: choose average, or node:0 to node:{nodes - 1}")
    return int(node[1])


def _size(shape: list[int]) -> int:
    return int(torch.Size(shape).numel())
