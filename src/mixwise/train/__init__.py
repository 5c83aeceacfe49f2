"""Training: the loop and its records."""

from mixwise.train.loop import records, train
from mixwise.train.optimizers import factor
from mixwise.train.records import Record
from mixwise.train.row_count import RowCount, count_rows
from mixwise.train.training import Step, Training

__all__ = ["Record", "RowCount", "Step", "Training", "count_rows", "factor", "records", "train"]
