"""Commands for deployments on this machine: `up`, `join`, `upgrade`, `rotate-deployment-key`, …

Part of `callboard-server`.

The commands run the supervisor as a separate program, so that the command line imports nothing of
the service. Decision requests-json-and-client.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from callboard.cli.session import EXIT_USAGE, HomeOption, Output, OutputOption, stop
from callboard.demo.processes import supervisor
from callboard.locating import default_home

_Port = Annotated[int | None, typer.Option(help="Port of the API.", show_default=False)]
_Host = Annotated[str | None, typer.Option(help="Address to listen on.", show_default=False)]
_Region = Annotated[str | None, typer.Option(help="Region of this cluster.", show_default=False)]
_Detach = Annotated[bool, typer.Option("--detach", help="Return when the service is ready.")]


def _become(command: list[str]) -> NoReturn:
    # The supervisor replaces this process. So it receives signals directly, also SIGKILL, and its
    # exit code is the command's.
    sys.stdout.flush()
    os.execv(command[0], command)


def _run_quietly(command: list[str]) -> None:
    """Run the supervisor with its progress on standard error; standard output is for JSON."""
    code = subprocess.run(command, stdout=sys.stderr, check=False).returncode
    if code:
        raise typer.Exit(code)


def up(
    home: HomeOption = None,
    port: _Port = None,
    host: _Host = None,
    region: _Region = None,
    detach: _Detach = False,
    output: OutputOption = Output.text,
) -> None:
    """Start a deployment in a folder, or restart it with its data."""
    folder = home or default_home()
    command = supervisor("up", home=folder, port=port, host=host, region=region, detach=detach)
    if output is Output.text or not detach:
        _become(command)
    _run_quietly(command)
    _print_json({"home": str(folder), "url": (folder / "url").read_text().strip()})


def join(
    node_address: Annotated[str, typer.Option(help="Address of this machine.")],
    head: Annotated[
        str | None, typer.Option(help="Address of the head, host or host:port.", show_default=False)
    ] = None,
    as_head: Annotated[
        bool, typer.Option("--as-head", help="Start the head of the cluster.")
    ] = False,
    ports: Annotated[
        int | None,
        typer.Option(help="First of 100 free ports, the same on all machines.", show_default=False),
    ] = None,
    home: HomeOption = None,
    port: _Port = None,
    detach: _Detach = False,
) -> None:
    """Start and supervise this machine as the head or a worker of a cluster."""
    if as_head == (head is not None):
        stop(EXIT_USAGE, "`join` needs one of --head ADDRESS and --as-head")
    given = {"node_address": node_address, "head": head, "as_head": as_head, "ports": ports}
    _become(supervisor("join", home=home or default_home(), **given, port=port, detach=detach))


def upgrade(
    to: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the release, with its environment in .venv; default: the release of"
            " this command.",
            show_default=False,
        ),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Upgrade to another release, or apply changed settings, without downtime."""
    _become(supervisor("upgrade", home=home or default_home(), to=to))


def rotate_deployment_key(
    end: Annotated[
        bool, typer.Option("--end", help="End the previous key, which is accepted until then.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="End the previous key although some data can be read only with it."
        ),
    ] = False,
    home: HomeOption = None,
) -> None:
    """Rotate the deployment key without downtime; run again to continue and see what is left."""
    _become(supervisor("rotate-deployment-key", home=home or default_home(), end=end, force=force))


def down(home: HomeOption = None, output: OutputOption = Output.text) -> None:
    """Stop a deployment, or this machine's part of it; the folder is kept."""
    folder = home or default_home()
    command = supervisor("down", home=folder)
    if output is Output.text:
        _become(command)
    _run_quietly(command)
    _print_json({"home": str(folder), "status": "down"})


def settings(home: HomeOption = None, output: OutputOption = Output.text) -> None:
    """Print every setting with its source; secrets are masked."""
    _become(supervisor("settings", home=home, output=output.value))


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


def _print_json(record: dict[str, str]) -> None:
    import json

    print(json.dumps(record, indent=2))


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file."""
    for function in (up, join, upgrade, rotate_deployment_key, down, settings, demo):
        app.command(rich_help_panel="Run")(function)
