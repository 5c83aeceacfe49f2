"""`mixwise doctor`: check the installation."""

from __future__ import annotations

import typer

from mixwise.terminal import fail, out


def doctor() -> None:
    """Check your installation, with a self-test of a few seconds.

    Shows versions, threads, back ends and data sets, and how to repair what is broken.

    Example: mixwise doctor
    """
    from mixwise.doctor import findings

    broken, topic = 0, None
    for finding in findings():
        mark = {None: "", True: "ok: ", False: "FAILED: "}[finding.ok]
        out.print(f"{'' if finding.topic == topic else finding.topic:<14}{mark}{finding.text}")
        topic = finding.topic
        if finding.ok is False:
            broken += 1
            out.print(f"{'':<14}remedy: {finding.remedy}")
    if broken:
        raise typer.Exit(fail(f"{broken} {'check' if broken == 1 else 'checks'} failed", 1))
    out.print("All checks passed.")
