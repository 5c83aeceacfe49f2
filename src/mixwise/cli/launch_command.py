"""`mixwise launch`: start several processes on one or more machines, and supervise them if they may be lost."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from typing import Annotated, Literal

import typer

from mixwise.terminal import err, out


def launch(
    command: Annotated[list[str], typer.Argument(help="After --: run RECIPE …, or your own script.")],
    processes: Annotated[int, typer.Option("--nproc-per-node", help="Processes on each machine.")],
    on_loss: Annotated[Literal["stop", "continue"], typer.Option(help="What to do when a process is lost.")] = "stop",
    count: Annotated[str, typer.Option("--machines", help="Number of machines; with stop, also a range: 1:3.")] = "1",
    here: Annotated[int, typer.Option("--machine", help="The number of this machine, from 0.")] = 0,
    master: Annotated[str | None, typer.Option(help="ADDRESS:PORT of machine 0, reachable from the others.")] = None,
    max_restarts: Annotated[int, typer.Option(help="With stop: restarts from the last checkpoint.")] = 0,
    grace: Annotated[float, typer.Option(help="With continue: seconds until a silent process counts as lost.")] = 30.0,
    show: Annotated[bool, typer.Option("--print", help="Only print the command lines of all machines.")] = False,
) -> None:
    """Start a recipe or a script in several processes.

    The processes run on one or more machines. When one of them is lost, the others stop, as under torchrun, or
    continue without it.

    Example: mixwise launch --nproc-per-node 4 --on-loss continue -- run digits
    """
    import mixwise.launch as start

    machines = start.Machines(processes, count, here, start.parse_master(master))
    worker, stops = start.worker_command(command), on_loss == "stop"
    start.check_options(machines, stops, max_restarts, grace)

    def line(here: start.Machines) -> list[str]:
        return start.torchrun_line(here, worker, max_restarts) if stops else start.launch_line(here, grace, command)

    if show:
        for machine in range(machines.most):
            out.print(shlex.join(line(replace(machines, here=machine))))
    elif stops:
        sys.stdout.flush()
        os.execv(sys.executable, start.python_line(line(machines)))
    else:
        raise typer.Exit(start.supervise(machines, worker, grace, lambda said: err.print(f"mixwise launch: {said}")))
