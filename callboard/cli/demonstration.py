"""`demo`: a whole deployment, six agents and one workflow, end to end. design.md section 6."""

from __future__ import annotations

from typing import Annotated

import typer

from callboard.cli.session import HomeOption


def demo(
    home: HomeOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the service running.")] = False,
    doc: Annotated[
        str | None, typer.Option(help="A file or address to report on.", show_default=False)
    ] = None,
) -> None:
    """Start the service and six agents, report on an article, show who was paid what."""
    from callboard.demo.run import demonstrate

    raise typer.Exit(demonstrate(home=home, keep=keep, document=doc))


def add_to(app: typer.Typer) -> None:
    """Add the verb of this file."""
    app.command()(demo)
