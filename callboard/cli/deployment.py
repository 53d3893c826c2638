"""Commands for deployments on this machine: `up`, `join`, `upgrade`, `rotate-deployment-key`, …

Part of `callboard-server`.

The supervisor, a separate program, parses the arguments and runs all of these commands except
`demo`. So the command line imports nothing of the service. Decision requests-json-and-client.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from callboard.cli.session import HomeOption
from callboard.demo.processes import supervisor

_VERBS: Final = {
    "up": "Start a deployment in a folder, or restart it with its data.",
    "join": "Start and supervise this machine as the head or a worker of a cluster.",
    "upgrade": "Upgrade to another release, or apply changed settings, without downtime.",
    "rotate-deployment-key": "Rotate the deployment key without downtime.",
    "down": "Stop a deployment, or this machine's part of it; the folder is kept.",
    "settings": "Print every setting with its source; secrets are masked.",
}


def _pass_on(context: typer.Context) -> None:
    # The supervisor replaces this process. So the supervisor receives signals directly, also
    # SIGKILL, and its exit code is the exit code of the command.
    sys.stdout.flush()
    command = supervisor(str(context.info_name), *context.args)
    os.execv(command[0], command)


def demo(
    home: HomeOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the service running.")] = False,
    doc: Annotated[
        str | None, typer.Option(help="File or address of the document.", show_default=False)
    ] = None,
    words: Annotated[
        str | None,
        typer.Option(help="Description from which the workflow is drafted.", show_default=False),
    ] = None,
) -> None:
    """Start the service and six agents, report on an article, show the payments."""
    from callboard.demo.run import demonstrate

    named = os.environ.get("CALLBOARD_HOME")
    home = home or (Path(named) if named else None)
    raise typer.Exit(demonstrate(home=home, keep=keep, document=doc, words=words))


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file."""
    for name, text in _VERBS.items():
        app.command(
            name,
            help=text,
            rich_help_panel="Run",
            context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
            add_help_option=False,
        )(_pass_on)
    app.command(rich_help_panel="Run")(demo)
