"""The command line, with a module for each topic. A command imports its libraries when it runs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

# Each module adds its nouns and verbs to `top`.
from callboard.cli import agents, audit, market, service, triggers, workflows  # noqa: F401
from callboard.cli.session import EXIT_USAGE, stop
from callboard.cli.session import top as app

# The commands of `deployment.py`, which is part of the package `callboard-server`.
SERVER_VERBS = ("up", "join", "upgrade", "rotate-deployment-key", "down", "settings", "demo")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(f"callboard {version('callboard')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Publish workflows, pay agents out of escrow, prove what happened."""


def add_server_verbs(app: typer.Typer, *, is_installed: bool) -> None:
    """Add the commands that need `callboard-server`.

    If it is not installed, commands with the same names say how to install it.

    Args:
        app: receives the commands.
        is_installed: whether `callboard-server` is installed.
    """
    if is_installed:
        from callboard.cli import deployment

        deployment.add_to(app)
        return
    for name in SERVER_VERBS:
        app.command(
            name,
            help=r"Not installed; it needs callboard\[server].",
            rich_help_panel="Run",
            context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
            add_help_option=False,
        )(_needs_server)


def _needs_server(context: typer.Context) -> None:
    stop(EXIT_USAGE, f"`{context.info_name}` needs the server: pip install 'callboard[server]'")


# The module is searched, not imported: an ImportError inside an installed server does not mean that
# the server is not installed.
add_server_verbs(app, is_installed=find_spec("callboard.cli.deployment") is not None)


def main() -> None:
    """Run the command line."""
    app()
