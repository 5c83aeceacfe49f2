"""Training: the loop and its records."""

from mixwise.training.loop import Record, records
from mixwise.training.optimizers import factor
from mixwise.training.row_count import RowCount, count_rows
from mixwise.training.run import TrainingRun, train
from mixwise.training.training import Step, Training

__all__ = [
    "Record", "RowCount", "Step", "Training", "TrainingRun", "count_rows", "factor", "records", "train",
]  # fmt: skip
