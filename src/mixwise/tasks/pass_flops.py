"""The arithmetic of a gradient pass, counted without running one."""

from __future__ import annotations

from torch.utils.flop_counter import FlopCounterMode

from mixwise.tasks.module import ModuleTask
from mixwise.tasks.pass_memory import run_copy


def pass_flops(task: ModuleTask, nodes: int) -> float:
    """Return the floating-point operations of one pass: that of one node, or stacked, of this many together.

    Matrix products, convolutions and attention count. A backward pass takes twice the operations of the forward pass.
    """
    x, _ = task.inputs.one(0, 0)
    counter = run_copy(task, x, lambda: FlopCounterMode(display=False))
    together = min(nodes, task.nodes_at_once) if task.gradients in ("stacked", "measure") else 1
    return 3.0 * together * counter.get_total_flops()
