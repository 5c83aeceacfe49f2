"""`launch`: several processes on one or several machines; this one starts them, or looks after them."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from typing import Annotated, Literal

import typer

from mixwise.terminal import err, out


def launch(
    command: Annotated[list[str], typer.Argument(help="After --: run RECIPE …, or a script of yours.")],
    processes: Annotated[int, typer.Option("--nproc-per-node", help="Processes on each machine.")],
    on_loss: Annotated[
        Literal["stop", "continue"],
        typer.Option(help="When a process is lost: stop all of them (torchrun), or go on without it."),
    ] = "stop",
    count: Annotated[str, typer.Option("--machines", help="How many; 1:3, at least 1 and at most 3, with stop.")] = "1",
    here: Annotated[int, typer.Option("--machine", help="The number of this machine, from 0.")] = 0,
    master: Annotated[str | None, typer.Option(help="ADDRESS:PORT of machine 0, as the others reach it.")] = None,
    max_restarts: Annotated[int, typer.Option(help="With stop: how often to start anew from the checkpoint.")] = 0,
    grace: Annotated[
        float, typer.Option(help="With continue: seconds that a process may be silent when one is lost.")
    ] = 30.0,
    show: Annotated[
        bool, typer.Option("--print", help="Print the command lines of all machines, run nothing.")
    ] = False,
) -> None:
    """Start a recipe or a script in several processes, on one or several machines.

    Example: mixwise launch --nproc-per-node 4 --on-loss continue -- run digits
    """
    from mixwise.launch import (
        Machines,
        check_options,
        launch_line,
        parse_master,
        python_line,
        supervise,
        torchrun_line,
        worker_command,
    )

    machines = Machines(processes, count, here, parse_master(master))
    worker = worker_command(command)
    stops = on_loss == "stop"
    check_options(machines, stops, max_restarts, grace)
    if show:
        for machine in range(machines.most):
            there = replace(machines, here=machine)
            line = torchrun_line(there, worker, max_restarts) if stops else launch_line(there, grace, command)
            out.print(shlex.join(line))
    elif stops:
        sys.stdout.flush()
        line = python_line(torchrun_line(machines, worker, max_restarts))
        os.execv(sys.executable, line)
    else:
        raise typer.Exit(supervise(machines, worker, grace, _say))


def _say(message: str) -> None:
    err.print(f"mixwise launch: {message}")
