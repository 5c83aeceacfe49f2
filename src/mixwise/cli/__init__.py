"""The command line; with its terminal, the only place that prints.

Each command is a function. A command imports what it needs when it is called, so that help and
shell completion do not wait for torch.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mixwise import __version__
from mixwise.cli.doctor_command import bench, doctor
from mixwise.cli.recipes_command import recipes
from mixwise.cli.report_command import export, figures, report, watch
from mixwise.cli.run_command import launch, run, sweep
from mixwise.cli.weights_command import graph, plan, weights
from mixwise.errors import MixwiseError
from mixwise.terminal import fail, out

app = typer.Typer(add_completion=True, rich_markup_mode=None, pretty_exceptions_enable=False)

# The error for a wrong option or argument: click's UsageError, or that of the click inside newer typers.
UsageError: type[Exception] = typer.BadParameter.mro()[1]


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Decentralized learning with gossip weights that fit the data."""
    if version:
        out.print(f"mixwise {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        out.print(context.get_help())


for _command in (run, launch, sweep, export, report, watch, figures, recipes, graph, weights, plan, doctor, bench):
    app.command()(_command)


def main() -> None:
    """The entry point: a user's mistake is one line and exit code 2, never a traceback."""
    try:
        status = typer.main.get_command(app).main(prog_name="mixwise", standalone_mode=False)
    except MixwiseError as error:
        from mixwise.network.refusal import told_launcher

        status = 2 if told_launcher(str(error)) else fail(str(error))
    except UsageError as error:
        message = getattr(error, "format_message", error.__str__)().rstrip(".")
        command = getattr(getattr(error, "ctx", None), "command_path", "mixwise")
        status = fail(f"{message}; see {command} --help")
    except OSError as error:  # a full disk, a folder without permission, a name that is too long
        place = error.filename or "a file"
        status = fail(f"{place} cannot be written or read: {error.strerror or error}; choose another with --out")
    except (typer.Abort, KeyboardInterrupt):
        status = fail("stopped", 130)
    sys.exit(status if isinstance(status, int) else 0)
