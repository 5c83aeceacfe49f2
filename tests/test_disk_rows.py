"""Rows on disk are the same rows: the same bits with every algorithm, nothing left behind, little in memory."""

import gc
import sys
import textwrap

import pytest
import torch

from every_algorithm import GRAPH, small_task, start
from mixwise.algorithms import DSGD
from mixwise.algorithms.catalog import CATALOG
from mixwise.errors import TrainingError
from mixwise.network import SimulatedNetwork
from mixwise.policies import HeterogeneityAware
from mixwise.train import Training
from mixwise.train.checkpoint import load_checkpoint, save_checkpoint
from mixwise.train.disk_rows import DiskRows, check_disk
from programs import run_program


def same(one: Training, other: Training) -> None:
    ours, theirs = one.state()[0], other.state()[0]
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


@pytest.mark.parametrize("kind", [entry.name for entry in CATALOG])
def test_every_algorithm_has_the_same_bits_on_disk(kind, tmp_path):
    disk = DiskRows(tmp_path)
    memory, on_disk = start(kind, small_task(40)), start(kind, small_task(40), disk=disk)
    for _ in range(4):
        one, other = memory.step(), on_disk.step()
        assert torch.equal(one.losses, other.losses)
    same(memory, on_disk)
    rows = memory.X.numel() * 4
    # X, G, and whatever is remembered that has a number for every coordinate of every node
    state = [value for name, value in on_disk.mixer.algorithm.state.items() if value.numel() * 4 >= rows]
    assert disk.live >= (2 + len(state)) * rows
    assert list(tmp_path.iterdir()) == []  # the files have no name: nothing is left, whatever happens
    size = disk.live
    del on_disk, one, other
    gc.collect()
    assert disk.live < size


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {}])
@pytest.mark.parametrize("row_by_row", [False, True])
def test_optimizers_and_checkpoints(options, row_by_row, tmp_path):
    kind = torch.optim.SGD if options else torch.optim.Adam

    def training(**where):
        task = small_task(40, group_of=lambda name, p: int(p.ndim < 2))
        task.row_by_row = row_by_row
        make = lambda blocks: kind([{"params": [b]} for b in blocks], lr=0.01, **options)  # noqa: E731
        return Training(task, SimulatedNetwork(GRAPH), HeterogeneityAware(2), DSGD(), make, **where)

    memory, disk = training(), DiskRows(tmp_path)
    on_disk = training(disk=disk)
    for _ in range(3):
        memory.step(), on_disk.step()
    same(memory, on_disk)
    # what is remembered of weights; of biases it is not worth a file
    assert disk.live >= (3.9 if kind is torch.optim.Adam else 2.9) * memory.X.numel() * 4
    save_checkpoint(on_disk, tmp_path / "checkpoint")
    again = training(disk=DiskRows(tmp_path))
    load_checkpoint(again, tmp_path / "checkpoint")
    for _ in range(2):
        memory.step(), again.step()
    same(memory, again)


def test_long_rows_of_a_checkpoint_go_to_disk_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr("mixwise.train.checkpoint._LONG", 1)
    disk = DiskRows(tmp_path)
    one, other = start("dadam", small_task(40)), start("dadam", small_task(40), disk=disk)
    one.step()
    save_checkpoint(one, tmp_path / "checkpoint")
    load_checkpoint(other, tmp_path / "checkpoint")
    same(one, other)
    gc.collect()
    assert disk.live == 3 * one.X.numel() * 4  # X and two of Adam; G comes with the next step
    one.step(), other.step()
    same(one, other)


def test_a_folder_that_is_not_there_yet(tmp_path):
    assert DiskRows(tmp_path / "run" / "rows").folder == tmp_path


def test_places_that_cannot_hold_the_rows(tmp_path):
    with pytest.raises(TrainingError, match=r"rows: disk needs 1000000000\.0 GB in .*make room there, or name"):
        check_disk(tmp_path, 10**18)
    check_disk(tmp_path, 1000)
    message = r"rows: disk cannot make a file of .* GB in .*rows_dir"
    with pytest.raises(TrainingError, match=message), DiskRows(tmp_path, least=1):
        torch.empty(0).new_empty(1 << 50)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_the_memory_of_a_process_stays_small(tmp_path):
    """Tensors of 1.2 GB in all, and what the process holds at its peak grows by less than half of that."""
    code = textwrap.dedent(f"""
        import torch
        from mixwise.train.disk_rows import DiskRows
        def kilobytes(field):
            return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field))
        before = kilobytes("VmRSS")
        with DiskRows({str(tmp_path)!r}, least=1 << 20):
            X = torch.empty(0).new_zeros(4, 36_000_000)
            Y = torch.zeros_like(X)
            Y.add_(1)
            X.add_(Y)
        assert X[3, 17] == 1 and X[0, -1] == 1
        print((kilobytes("VmHWM") - before) * 1024)
    """)
    done = run_program("-c", code)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 0.6e9
