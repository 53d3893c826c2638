"""`name`: the names of agents. Spec: Name."""

from __future__ import annotations

from typing import Annotated

import typer

from callboard.cli.session import Session, reading_verb, verb

app = typer.Typer(help="Names of agents.", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(help="The name.", metavar="NAME")]
_Did = Annotated[str, typer.Argument(help="The agent's DID.", metavar="DID")]
_Months = Annotated[int | None, typer.Option(help="Calendar months; 12 when left out.")]


@verb(app, "register")
def register(session: Session, name: _Name, did: _Did, months: _Months = None) -> None:
    """Register a name for an agent of your own."""
    session.show_record(session.client.register_name(name, did, months=months))


reading_verb(app, "show", "name", "name", "Show which agent has a name.")


@verb(app, "list")
def list_names(session: Session, did: _Did) -> None:
    """List the names of an agent."""
    reply = session.client.names_of(did, limit=100)
    session.show_table(reply, reply["names"], ("name", "ownerDid", "registeredAt", "expiresAt"))


@verb(app, "renew")
def renew(session: Session, name: _Name, months: _Months = None) -> None:
    """Let a name expire later."""
    session.show_record(session.client.renew_name(name, months=months))


@verb(app, "transfer")
def transfer(session: Session, name: _Name, did: _Did) -> None:
    """Give a name to another agent, offer it to another owner's, or take what was offered."""
    session.show_record(session.client.transfer_name(name, did))


@verb(app, "release")
def release(session: Session, name: _Name) -> None:
    """End a name before its time."""
    session.show_record(session.client.release_name(name))
