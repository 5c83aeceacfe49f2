"""Gossip inside a trainer: every rank runs a trainer of its own, which sees one process, and a callback mixes.

The hooks are classes without a base, which they get when a callback is made: mixwise needs none of the trainers.
"""

from __future__ import annotations

import copy
import os
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from mixwise.errors import TrainingError
from mixwise.gossip.gossip import Gossip
from mixwise.graphs import Graph

_SEEN_BY_TRAINERS = ("LOCAL_RANK", "WORLD_SIZE")  # from these, accelerate concludes that it should average gradients


def start_node(backend: str | None = None) -> tuple[int, int]:
    """Join the process group, and let a trainer that is made afterwards see this process alone, with one GPU.

    Args:
        backend: of `torch.distributed.init_process_group`, unless there is a group already; None for torch's default.

    Returns:
        The rank, and the number of processes; (0, 1) for a program that no launcher has started.
    """
    if "RANK" not in os.environ and not dist.is_initialized():
        return 0, 1
    if gpus := os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count()))):
        local, ours = int(os.environ.get("LOCAL_RANK", 0)), gpus.split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = ours[local % len(ours)]
    if not dist.is_initialized():
        dist.init_process_group(backend)
    for name in _SEEN_BY_TRAINERS:
        os.environ.pop(name, None)
    return dist.get_rank(), dist.get_world_size()


def trainer_callback(graph: Graph, **options: Any) -> Any:
    """A callback for the `Trainer` of Hugging Face that mixes after every step of the optimizer.

    Args:
        graph: the communication graph; node i is rank i.
        options: those of `Gossip`.

    Returns:
        A `transformers.TrainerCallback`; from the first step on, its attribute `gossip` is the `Gossip`.
    """
    return _made(_TrainerHooks, ["transformers"], "TrainerCallback")(graph, options)


def lightning_callback(graph: Graph, **options: Any) -> Any:
    """A callback for the `Trainer` of Lightning that mixes after every step of the optimizer.

    Args:
        graph: the communication graph; node i is rank i.
        options: those of `Gossip`.

    Returns:
        A `lightning.pytorch.Callback`; from the first step on, its attribute `gossip` is the `Gossip`.
    """
    return _made(_LightningHooks, ["lightning.pytorch", "pytorch_lightning"], "Callback")(graph, options)


def _made(hooks: type, packages: list[str], base: str) -> type:
    """Return a class of hooks with the base class from the first of these packages that is installed."""
    for package in packages:
        try:
            return type("GossipCallback", (hooks, getattr(import_module(package), base)), {})
        except ModuleNotFoundError as error:
            if error.name not in (package, package.partition(".")[0]):
                raise
    raise TrainingError(f"{packages[0]} is not installed; install mixwise[trainers]")


class _Hooks:
    """The part that all callbacks share; from the beginning of training to its end, it is inside `Gossip.join`."""

    gossip: Gossip

    def __init__(self, graph: Graph, options: dict[str, Any]) -> None:
        if options.get("elastic"):
            raise TrainingError(
                "elastic=True: a trainer whose rank returns cannot continue at the step of the others; leave it out, "
                "or use mixwise.Gossip in a loop of your own"
            )
        if "scheduler" in options:
            raise TrainingError(
                "scheduler=…: a trainer steps its own schedule once per step of the optimizer, so Gossip must not; "
                "leave it out, and give all ranks the same number of steps"
            )
        self.graph, self.options = graph, options
        self._block = ExitStack()

    def _begin(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any] | None) -> None:
        """Start to mix, or resume from the state of a checkpoint whose model and optimizer are loaded already."""
        own = copy.deepcopy(model.state_dict()) if state is not None else None
        self.gossip = Gossip(model, optimizer, self.graph, **self.options)  # takes the values of rank 0
        if own is not None and state is not None:
            model.load_state_dict(own)
            self.gossip.load_state_dict(state)
        self._block.enter_context(self.gossip.join())


class _TrainerHooks(_Hooks):
    """The hooks of transformers."""

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any, optimizer: Any, **_: Any) -> None:
        if args.world_size > 1 or args.n_gpu > 1:
            raise TrainingError(
                f"the Trainer sees {args.world_size} processes and {args.n_gpu} GPUs, so it averages gradients itself; "
                f"call mixwise.gossip.start_node() before TrainingArguments is made, and leave out ddp_backend"
            )
        kept = _checkpoint(args, state)
        if state.global_step and not kept.exists():
            raise TrainingError(
                f"{kept} does not exist, but a rank resumes from its own checkpoint of step {state.global_step}; pass "
                f"the output_dir of that run, or train without resume_from_checkpoint"
            )
        self._begin(model, optimizer, torch.load(kept, weights_only=True) if state.global_step else None)
        # Every rank saves into its own folder, also models that would ask the process group for their rank; rank 0
        # alone shows progress and logs.
        model.should_save_on_this_rank = _saves
        state.is_world_process_zero = state.is_local_process_zero = self.gossip.rank == 0

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.gossip.stepped()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if hasattr(self, "gossip"):
            torch.save(self.gossip.state_dict(), _checkpoint(args, state))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._block.close()


def _saves(is_main_process: bool) -> bool:
    """Whether a model of transformers is saved, if the other ranks do not matter."""
    return is_main_process


def _checkpoint(args: Any, state: Any) -> Path:
    """The file of `Gossip` in the checkpoint of this step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}" / "gossip.pt"


class _LightningHooks(_Hooks):
    """The hooks of Lightning."""

    _state: dict[str, Any] | None = None  # of the checkpoint to resume from
    _steps = 0  # of the optimizer, when the last batch had ended

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if dist.is_initialized() and dist.get_rank() > 0:  # rank 0 alone shows progress
            shown = ("ProgressBar", "ModelSummary")  # plain or rich
            trainer.callbacks = [c for c in trainer.callbacks if not type(c).__name__.endswith(shown)]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.world_size > 1:
            raise TrainingError(
                f"Lightning sees {trainer.world_size} processes, so it averages gradients itself; make the Trainer "
                f'with devices=1 and strategy="auto"'
            )
        if len(trainer.optimizers) != 1:
            raise TrainingError(f"the module has {len(trainer.optimizers)} optimizers, but Gossip follows one; use one")
        self._begin(pl_module, trainer.optimizers[0], self._state)
        self._state, self._steps = None, trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step > self._steps:  # otherwise gradients are accumulated
            self._steps = trainer.global_step
            self.gossip.stepped(outputs.get("loss") if isinstance(outputs, dict) else None)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._block.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._block.__exit__(type(exception), exception, exception.__traceback__)

    def state_dict(self) -> dict[str, Any]:
        return self.gossip.state_dict() if hasattr(self, "gossip") else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict or None
