"""Gossip in trainers: the same parameters as a plain loop with `Gossip`, resumed to the same bits; the examples run.

The packages are in the extra `trainers`, and are imported inside the processes: `make test` does without them.
"""

import os
import re
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mixwise as mw
from builders import cases, refused
from process_pool import in_processes, run_in_processes
from programs import run_program

pytestmark = [in_processes, pytest.mark.trainers, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).parents[2] / "examples"
PATH = mw.Graph(3, [(0, 1), (1, 2)])  # no mixing is an exact average here
UNEVEN, EVEN = (24, 32, 40), (32, 32, 32)  # samples of the ranks


class Net(nn.Module):
    """A model as the Trainer of Hugging Face wants it: it returns its loss."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x, labels):
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def problem(rank, sizes):
    """A model, an optimizer, and the data of a rank, in batches of 4."""
    torch.manual_seed(rank)
    x = torch.randn(sizes[rank], 3) + rank
    y = (x.sum(1) > 3 * rank).long()
    model = Net()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), TensorDataset(x, y)


def decaying(optimizer):
    """A schedule counted in steps."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 4))


def row(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def launched(rank, world):
    """The environment that a launcher leaves."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    return patch.dict(os.environ, {name: str(value) for name, value in told.items()}, MASTER_ADDR="127.0.0.1")


# --- the same training, four times: two batches of 4 per step, whose gradients are averaged ---
def plain(rank, world, folder, sizes, epochs=2, resume=False, **options):
    model, optimizer, data = problem(rank, sizes)
    gossip = mw.Gossip(model, optimizer, PATH, scheduler=decaying(optimizer), **options)
    with gossip.join():
        for batch in list(DataLoader(data, batch_size=8)) * epochs:
            optimizer.zero_grad()
            for x, y in zip(*(part.split(4) for part in batch), strict=True):
                (model(x, y)["loss"] / 2).backward()
            gossip.step()
    return row(model)


def apart(rank, world, folder, sizes):
    """Every rank alone, from the same start."""
    model, optimizer, data = problem(rank, sizes)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    scheduler = decaying(optimizer)
    for x, y in list(DataLoader(data, batch_size=8)) * 2:
        optimizer.zero_grad()
        model(x, y)["loss"].backward()
        optimizer.step()
        scheduler.step()
    return row(model)


def accelerate(rank, world, folder, sizes, epochs=2, resume=False, **options):
    with launched(rank, world):
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(True)  # of a test before
        GradientState._reset_state()
        mw.gossip.start_node()
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        assert accelerator.num_processes == 1
        model, optimizer, data = problem(rank, sizes)
        model, optimizer, loader, scheduler = accelerator.prepare(
            model, optimizer, DataLoader(data, batch_size=4), decaying(optimizer)
        )
        gossip = mw.Gossip(model, optimizer, PATH, scheduler=scheduler, **options)
        accelerator.register_for_checkpointing(gossip)
        if resume:
            accelerator.load_state(f"{folder}/{rank}")
        with gossip.join():
            for _ in range(epochs - resume):
                for x, y in loader:
                    with accelerator.accumulate(model):
                        accelerator.backward(model(x, y)["loss"])
                        gossip.step()
                        optimizer.zero_grad()
        accelerator.save_state(f"{folder}/{rank}")
        return row(model)


def trainer(rank, world, folder, sizes, epochs=2, resume=False, started=True, **options):
    with launched(rank, world):
        from transformers import Trainer, TrainingArguments

        if started:
            mw.gossip.start_node()
        model, optimizer, data = problem(rank, sizes)
        args = TrainingArguments(
            f"{folder}/{rank}", num_train_epochs=epochs, per_device_train_batch_size=4, gradient_accumulation_steps=2,
            max_grad_norm=0.0, train_sampling_strategy="sequential", save_strategy="epoch", use_cpu=True,
        )  # fmt: skip
        callback = mw.gossip.trainer_callback(PATH, **options)
        dataset = [{"x": x, "labels": y} for x, y in data]
        Trainer(
            model, args, train_dataset=dataset, optimizers=(optimizer, decaying(optimizer)), callbacks=[callback]
        ).train(resume_from_checkpoint=resume)
        return row(model)


def lightning(rank, world, folder, sizes, epochs=2, resume=False, fails=None, **options):
    with launched(rank, world):
        from lightning import LightningModule, Trainer

        class Module(LightningModule):
            def training_step(self, batch, number):
                if rank == fails and number == 2:
                    raise RuntimeError("on purpose")
                return self.model(*batch)["loss"]

            def configure_optimizers(self):
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": decaying(optimizer), "interval": "step"}}

        mw.gossip.start_node()
        module = Module()
        module.model, optimizer, data = problem(rank, sizes)
        made = Trainer(
            accelerator="cpu", devices=1, max_epochs=epochs, accumulate_grad_batches=2, logger=False,
            default_root_dir=f"{folder}/{rank}", callbacks=[mw.gossip.lightning_callback(PATH, **options)],
        )  # fmt: skip
        (kept,) = Path(f"{folder}/{rank}").rglob("*.ckpt") if resume else (None,)
        made.fit(module, DataLoader(data, batch_size=4), ckpt_path=kept)
        return row(module)


TRAINERS = (accelerate, trainer, lightning)


def together(function, *args, **named):
    """The rows (3, d) of three processes."""
    return torch.stack(run_in_processes(3, call, function, args, named))


def call(rank, world, function, args, named):
    return function(rank, world, *args, **named)


def consensus_distance(X):
    return float((X - X.mean(0)).square().sum() / len(X))


@pytest.mark.parametrize("options", [{}, {"local_steps": 2, "policy": "metropolis-hastings"}])
def test_a_trainer_takes_the_steps_of_a_plain_loop(options, tmp_path):
    """With a schedule, gradient accumulation, local steps, and ranks that have different amounts of data."""
    expected = together(plain, tmp_path, UNEVEN, **options)
    assert consensus_distance(expected) < consensus_distance(together(apart, tmp_path, UNEVEN)) / 2
    for function in TRAINERS:
        found = together(function, tmp_path / function.__name__, UNEVEN, **options)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, msg=function.__name__)


@pytest.mark.parametrize("function", TRAINERS)
def test_a_run_resumes_bit_for_bit_though_the_ranks_differ(function, tmp_path):
    whole = together(function, tmp_path / "whole", EVEN)
    assert consensus_distance(together(function, tmp_path / "parts", EVEN, epochs=1)) > 0
    assert torch.equal(together(function, tmp_path / "parts", EVEN, resume=True), whole)


# --- LoRA ---
def adapters(rank, world, freeze):
    """The product B·A of a rank before and after a mixing, and the length of its row."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(rank)
    model = get_peft_model(nn.Sequential(nn.Linear(4, 6)), LoraConfig(r=2, target_modules=["0"]))
    A, B = (part["default"].weight for part in (model.base_model.model[0].lora_A, model.base_model.model[0].lora_B))
    A.requires_grad_(not freeze)
    gossip = mw.Gossip(model, torch.optim.SGD([A, B][freeze:], lr=0.1), PATH)
    with torch.no_grad():  # as if trained
        for trained in [A, B][freeze:]:
            trained += torch.randn(trained.shape)
        before = B @ A
        gossip.mix()
        return before, B @ A, gossip.row.X.numel()


@pytest.mark.parametrize("freeze", [True, False])
def test_the_average_of_products_is_conserved_if_one_factor_is_frozen(freeze):
    before, after, sent = zip(*run_in_processes(3, adapters, freeze), strict=True)
    assert set(sent) == {2 * 6 if freeze else 2 * (4 + 6)}  # the adapters alone travel
    difference = (sum(after) - sum(before)).abs().max() / 3
    assert difference < 1e-6 if freeze else difference > 1e-2


# --- mistakes ---
def errors(function, *args, **named):
    """The errors of three processes."""
    return run_in_processes(3, error_of, function, args, named)


def error_of(rank, world, function, args, named):
    try:
        function(rank, world, *args, **named)
    except (mw.MixwiseError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def test_a_trainer_that_averages_gradients_itself_is_refused(tmp_path):
    for error in errors(trainer, tmp_path, EVEN, started=False):
        assert error.startswith("TrainingError: the Trainer sees 3 processes")
        assert "start_node" in error


@pytest.mark.parametrize("callback", [mw.gossip.trainer_callback, mw.gossip.lightning_callback])
def test_a_schedule_is_left_to_the_trainer(callback):
    refused(mw.errors.TrainingError, "a trainer steps its own schedule .*leave it out", callback, PATH, scheduler=1)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    together(trainer, tmp_path, EVEN, epochs=1)
    for kept in tmp_path.rglob("gossip.pt"):
        kept.unlink()
    for error in errors(trainer, tmp_path, EVEN, resume=True):
        assert "gossip.pt does not exist, but a rank resumes from its own checkpoint of step 4" in error


def test_the_others_hear_of_a_rank_that_fails_in_lightning(tmp_path):
    first, failed, last = errors(lightning, tmp_path, EVEN, fails=1)
    assert failed == "RuntimeError: on purpose"
    assert all("rank 1 has left the join block with an error" in error for error in (first, last))


# --- the examples ---
@cases(
    "name, right, saved",
    ("accelerate", 0.9, "with-accelerate/rank-1/model.safetensors"),
    ("trainer", 0.8, "with-trainer/rank-1/checkpoint-60/model.safetensors"),
    ("lightning", 0.9, "with-lightning/rank-1/**/*.ckpt"),
    ("lora", 0.65, "with-lora/adapter_model.safetensors"),
)
def test_an_example_runs_on_two_processes(name, right, saved, tmp_path):
    """Two nodes that mix are at one point, and know the class that they have not seen; rank 0 alone prints."""
    done = run_program(
        "-m", "mixwise", "launch", "--nproc-per-node", 2, "--", EXAMPLES / f"with_{name}.py", cwd=tmp_path,
        starts_programs=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = re.findall(r"accuracy on both classes (\S+)   consensus distance (\S+)", done.stdout)
    assert float(line[0]) > right
    assert float(line[1]) < 1e-10
    assert list(tmp_path.glob(saved))


@pytest.mark.parametrize("name", ["accelerate", "trainer", "lightning", "lora"])
def test_gossip_takes_at_most_five_lines(name):
    assert 3 < (EXAMPLES / f"with_{name}.py").read_text("utf-8").count("  # +") <= 5
