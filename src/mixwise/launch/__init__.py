"""Starting processes: the torchrun line for one or several machines, or a supervisor that never ends survivors."""

from mixwise.launch.command import (
    Machines,
    check_options,
    launch_line,
    parse_master,
    python_line,
    torchrun_line,
    worker_command,
)
from mixwise.launch.supervisor import supervise

__all__ = [
    "Machines",
    "check_options",
    "launch_line",
    "parse_master",
    "python_line",
    "supervise",
    "torchrun_line",
    "worker_command",
]
